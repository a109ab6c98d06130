// A file that sat-tf exported, in LiteRT's WebAssembly runtime.

import { Tensor, loadAndCompile, loadLiteRt } from '@litertjs/core';
import { readTexts } from './archive.js';
import { outputGrid } from './codes.js';
import { prepare } from './pixels.js';

const WASM = new URL('node_modules/@litertjs/core/wasm/', import.meta.url).href;
let runtime;

/** A file that classifies pictures. */
export class Model {
  /** @param {Uint8Array} bytes the file */
  static async open(bytes) {
    const texts = readTexts(bytes);
    runtime ??= loadLiteRt(WASM);
    await runtime;
    const compiled = await loadAndCompile(bytes, { accelerator: 'wasm' });
    try {
      return new Model(compiled, texts, outputGrid(bytes));
    } catch (error) {
      compiled.delete();
      throw error;
    }
  }

  constructor(compiled, texts, grid) {
    const [inputs, outputs] = [compiled.getInputDetails(), compiled.getOutputDetails()];
    const shape = Array.from(inputs[0].shape).slice(1);
    const isPicture =
      inputs[0].dtype === 'uint8' && shape.length === 3 && [1, 3].includes(shape[2]);
    // LiteRT.js hands out no int8.
    const hasScores =
      outputs.length === 1 &&
      outputs[0].shape.length === 2 &&
      ['float32', 'uint8'].includes(outputs[0].dtype);
    if (inputs.length !== 1 || !isPicture || !hasScores) {
      const found = [...inputs, ...outputs].map(({ dtype, shape }) => `${dtype} ${shape}`);
      const expected = 'one uint8 picture and the scores of its classes, float32 or uint8';
      const isInt8 = outputs.some(({ dtype }) => dtype === 'int8');
      const fix = isInt8 ? ". LiteRT.js hands out no int8: export with output_type='uint8'" : '';
      throw new Error(`received a file of ${found.join(', ')}; expected ${expected}${fix}`);
    }
    this.shape = shape;
    this.labels = texts['labels.txt']?.replace(/\r?\n$/, '').split(/\r?\n/);
    this.preprocessing = known(JSON.parse(texts['preprocessing.json'] ?? '{}'));
    this.compiled = compiled;
    this.grid = grid;
  }

  /** What the file gives for an input, as real values. */
  async run(pixels) {
    const input = new Tensor(pixels, [1, ...this.shape]);
    const outputs = await this.compiled.run(input);
    const { scale, zeroPoint } = this.grid ?? { scale: 1, zeroPoint: 0 };
    const values = Float32Array.from(
      outputs[0].toTypedArray(),
      (stored) => Math.fround(stored - zeroPoint) * scale,
    );
    [input, ...outputs].forEach((tensor) => tensor.delete());
    return values;
  }

  /** The classes of a picture, the likeliest first: {label, probability}. */
  async classify(picture) {
    const values = await this.run(await prepare(picture, this.shape, this.preprocessing));
    return probabilities(values, this.grid)
      .map((probability, index) => ({
        label: this.labels?.[index] ?? `class ${index}`,
        probability,
      }))
      .sort((one, other) => other.probability - one.probability);
  }

  delete() {
    this.compiled.delete();
  }
}

/** What a file says of its input, if it is what pixels.js does. */
function known(preprocessing) {
  const done = { crop: 'centre', interpolation: 'bilinear', antialias: true, range: [0, 255] };
  for (const [name, value] of Object.entries({ ...done, ...preprocessing })) {
    if (name in done && String(value) !== String(done[name])) {
      throw new Error(`received a file with ${name}: ${value}; expected ${done[name]}`);
    }
  }
  return preprocessing;
}

/** Values that are none yet, because the file ends in logits, go through a softmax. */
function probabilities(values, grid) {
  const given = Array.from(values);
  const isRounded = grid?.scale === 1 / 256 && grid.zeroPoint === 0; // their sum may be far from 1
  const isDone =
    isRounded || (given.every((value) => value >= 0) && Math.abs(sum(given) - 1) < 0.05);
  if (isDone) return given;
  const largest = Math.max(...given);
  const powers = given.map((value) => Math.exp(value - largest));
  const total = sum(powers);
  return powers.map((power) => power / total);
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
