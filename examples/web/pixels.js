// A picture as the pixels that a model was measured on.
//
// Browsers do not say how they resize, so this does it: bilinear with antialiasing, in integers,
// the arithmetic of Pillow, rows first. Of opaque pictures the pixels are those of Pillow, and off
// by one at most where Pillow 13 takes columns first. Of transparent ones the browser keeps no
// hidden color.

const BITS = 22;

/**
 * The input of a model for a picture.
 *
 * @param {Blob} picture of any format that the browser reads
 * @param {number[]} shape rows, columns and channels of the input
 * @param {object} preprocessing what the file says; {} where it says nothing
 * @returns {Promise<Uint8Array>} rows * columns * channels values
 */
export async function prepare(picture, [rows, columns, channels], preprocessing) {
  const { resize_ratio: ratio = 1, exif_orientation: turns = true } = preprocessing;
  const image = await decoded(turns ? picture : await withoutExif(picture));
  const covered = [rows, columns].map((side) => halfToEven(side * ratio));
  const factor = Math.max(covered[0] / image.height, covered[1] / image.width);
  // The share of a pixel is for rounding errors of a side that is exactly covered.
  const [height, width] = [image.height, image.width].map((side) =>
    Math.floor(side * factor + 1e-3),
  );
  const top = halfToEven((height - rows) / 2);
  const left = halfToEven((width - columns) / 2);
  const planes = channels === 3 ? colors(image.data) : [luma(image.data)];
  const down = weights(image.height, image.height / height, top, rows);
  const across = weights(image.width, image.width / width, left, columns);
  const pixels = new Uint8Array(rows * columns * channels);
  planes.forEach((plane, channel) => {
    const narrow = resized(plane, image.height, image.width, across);
    const small = transposed(
      resized(transposed(narrow, image.height, columns), columns, image.height, down),
      columns,
      rows,
    );
    small.forEach((value, index) => (pixels[index * channels + channel] = value));
  });
  return pixels;
}

async function decoded(picture) {
  const bitmap = await createImageBitmap(picture, {
    colorSpaceConversion: 'none',
    premultiplyAlpha: 'none',
  });
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d');
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

/** A JPEG without the segments that hold its orientation, by which browsers turn it. */
async function withoutExif(picture) {
  const view = new DataView(await picture.arrayBuffer());
  if (view.byteLength < 4 || view.getUint16(0) !== 0xffd8) return picture;
  const parts = [picture.slice(0, 2)];
  let at = 2;
  while (at + 4 <= view.byteLength && view.getUint16(at) !== 0xffda) {
    const next = at + 2 + view.getUint16(at + 2);
    if (view.getUint16(at) !== 0xffe1) parts.push(picture.slice(at, next));
    at = next;
  }
  return new Blob([...parts, picture.slice(at)], { type: picture.type });
}

/** For each place of the output: the first value it reads, and the weights from there on. */
function weights(size, scale, start, count) {
  const [from, to] = [start * scale, (start + count) * scale].map(Math.fround);
  const step = Math.fround(to - from) / count;
  const support = Math.max(step, 1);
  return Array.from({ length: count }, (_, index) => {
    const center = from + (index + 0.5) * step;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const end = Math.min(size, Math.trunc(center + support + 0.5));
    const shares = Array.from({ length: end - first }, (_, place) =>
      Math.max(0, 1 - Math.abs((first + place - center + 0.5) * (1 / support))),
    );
    const total = shares.reduce((sum, share) => sum + share, 0);
    return { first, shares: shares.map((share) => Math.trunc(0.5 + (share / total) * 2 ** BITS)) };
  });
}

function resized(plane, rows, columns, places) {
  const result = new Uint8Array(rows * places.length);
  for (let row = 0; row < rows; row++) {
    places.forEach(({ first, shares }, index) => {
      let sum = 1 << (BITS - 1);
      for (let i = 0; i < shares.length; i++) sum += plane[row * columns + first + i] * shares[i];
      result[row * places.length + index] = Math.min(255, sum >> BITS);
    });
  }
  return result;
}

function transposed(plane, rows, columns) {
  const result = new Uint8Array(plane.length);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      result[column * rows + row] = plane[row * columns + column];
    }
  }
  return result;
}

function colors(data) {
  return [0, 1, 2].map((channel) =>
    Uint8Array.from({ length: data.length / 4 }, (_, i) => data[4 * i + channel]),
  );
}

/** ITU-R 601 in 16 bits. */
function luma(data) {
  return Uint8Array.from({ length: data.length / 4 }, (_, i) => {
    const [red, green, blue] = data.subarray(4 * i, 4 * i + 3);
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16;
  });
}

function halfToEven(value) {
  const floor = Math.floor(value);
  const isTie = value - floor === 0.5;
  return isTie ? floor + (floor % 2) : Math.round(value);
}
