// What the integers of a file's output are worth, by the numbers that stand beside it in the file.

const SUBGRAPHS = 2; // of a model; the others of a subgraph, a tensor and its quantization
const [TENSORS, OUTPUTS] = [0, 2];
const QUANTIZATION = 4;
const [SCALES, ZERO_POINTS] = [2, 3];

/** The scale and the zero point of the first output; null where it is float. */
export function outputGrid(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const table = (place) => place + view.getUint32(place, true);
  // Where a field of a table is; 0 where the table has none.
  const field = (owner, number) => {
    const fields = owner - view.getInt32(owner, true);
    const entry = 4 + 2 * number;
    const shift = entry < view.getUint16(fields, true) ? view.getUint16(fields + entry, true) : 0;
    return shift && owner + shift;
  };
  const element = (owner, number, index) => table(field(owner, number)) + 4 + 4 * index;
  const subgraph = table(element(table(0), SUBGRAPHS, 0));
  const output = view.getInt32(element(subgraph, OUTPUTS, 0), true);
  const tensor = table(element(subgraph, TENSORS, output));
  const place = field(tensor, QUANTIZATION);
  if (!place || !field(table(place), SCALES)) return null;
  const scale = view.getFloat32(element(table(place), SCALES, 0), true);
  const zeroPoint = Number(view.getBigInt64(element(table(place), ZERO_POINTS, 0), true));
  return { scale, zeroPoint };
}
