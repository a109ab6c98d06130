// The page: `model.tflite` beside it, or index.html?model=ADDRESS, or a dropped file.

import { Model } from './model.js';

const SHOWN = 5;
const [about, drop, files, picture, results] = ['model', 'drop', 'files', 'picture', 'results'].map(
  (id) => document.getElementById(id),
);
let model;
let shown; // the picture that is classified, again where the model changes

async function loadFirst() {
  const address = new URLSearchParams(location.search).get('model') ?? 'model.tflite';
  const answer = await fetch(address);
  if (answer.ok) await load(address.split('/').pop(), answer);
  else about.textContent = `There is no ${address} here: drop a .tflite file.`;
}

async function load(name, source) {
  const opened = await Model.open(new Uint8Array(await source.arrayBuffer()));
  model?.delete();
  model = opened;
  const classes = model.labels ? `${model.labels.length} classes` : 'no class names';
  about.textContent = `${name}: pictures of ${model.shape.join(' × ')}, ${classes}`;
}

async function take(file) {
  if (file.name.endsWith('.tflite')) {
    await load(file.name, file);
  } else {
    shown = file;
    URL.revokeObjectURL(picture.src);
    picture.src = URL.createObjectURL(file);
    picture.alt = file.name;
    picture.hidden = false;
  }
  if (!shown || !model) return;
  const start = performance.now();
  const classes = await model.classify(shown);
  const milliseconds = Math.round(performance.now() - start);
  results.replaceChildren(
    ...classes.slice(0, SHOWN).map(line),
    note(`${milliseconds} ms with preparation`),
  );
}

function line({ label, probability }) {
  const percent = `${(100 * probability).toFixed(1)} %`;
  const row = element('div', 'class');
  const bar = element('div', 'bar');
  bar.append(element('div'));
  bar.firstChild.style.width = `${100 * probability}%`;
  row.append(element('span', 'label', label), element('span', 'percent', percent), bar);
  return row;
}

function note(text, kind = 'note') {
  return element('p', kind, text);
}

function element(tag, kind = '', text = '') {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  return made;
}

/** One after the other: a model is not deleted while it runs. */
let last = Promise.resolve();
function queue(work) {
  last = last.then(work).catch((error) => results.replaceChildren(note(error.message, 'error')));
}

queue(loadFirst);
files.addEventListener('change', () => [...files.files].forEach((file) => queue(() => take(file))));
for (const kind of ['dragover', 'dragleave', 'drop']) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle('over', kind === 'dragover');
  });
}
document.addEventListener('drop', (event) =>
  [...event.dataTransfer.files].forEach((file) => queue(() => take(file))),
);
