// The texts in the zip archive that sat-tf appends to a file: its labels, its preprocessing.

const END = 0x06054b50;
const END_BYTES = 22;
const ENTRY = 0x02014b50;
const ENTRY_BYTES = 46;
const HEADER_BYTES = 30;
const LONGEST_COMMENT = 0xffff;

/** The texts behind a file, by their names; none where there is no archive. */
export function readTexts(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const end = findEnd(view);
  if (end < 0) return {};
  const texts = {};
  const start = end - view.getUint32(end + 12, true);
  // Offsets count from the first byte of the archive, or of what it is appended to.
  const shift = start - view.getUint32(end + 16, true);
  let at = start;
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (view.getUint32(at, true) !== ENTRY) throw new Error('the archive in the file is damaged');
    const lengths = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const name = decode(bytes, at + ENTRY_BYTES, lengths[0]);
    if (view.getUint16(at + 10, true) !== 0) throw new Error(`${name} in the file is compressed`);
    const header = view.getUint32(at + 42, true) + shift;
    const skipped = view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
    texts[name] = decode(bytes, header + HEADER_BYTES + skipped, view.getUint32(at + 24, true));
    at += ENTRY_BYTES + lengths[0] + lengths[1] + lengths[2];
  }
  return texts;
}

function findEnd(view) {
  const last = view.byteLength - END_BYTES;
  for (let at = last; at >= Math.max(0, last - LONGEST_COMMENT); at--) {
    if (view.getUint32(at, true) !== END) continue;
    if (at + END_BYTES + view.getUint16(at + 20, true) === view.byteLength) return at;
  }
  return -1;
}

function decode(bytes, start, length) {
  return new TextDecoder('utf-8', { fatal: true }).decode(bytes.subarray(start, start + length));
}
