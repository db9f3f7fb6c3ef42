// The worker of the page: makes the engine, then answers one question after the other.
'use strict';

const SLICE = 4; // milliseconds that a question waits at most for what is made ahead

let engine = null;
let ahead = null; // the tokens that may come next and were not looked at yet

async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function start({ module, vocabulary, library }) {
  const [wasmBinary, tokens, texts] = await Promise.all([module, vocabulary, library].map(unpacked));
  const began = performance.now();
  engine = new Engine(await createModule({ wasmBinary }), tokens, texts);
  return { tokens: tokens, milliseconds: performance.now() - began };
}

function explore({ notation, source, text, position }) {
  ahead = null;
  const compiled = engine.compile(notation, source);
  if (compiled.error) return { compiled };
  const walked = engine.walk(text);
  const at = Math.min(position ?? walked.taken, walked.taken);
  const place = walked.error ? { error: walked.error } : engine.look(walked.ids, at, walked.taken);
  if (!place.error) ahead = place.shown;
  return { compiled, walked, position: at, place };
}

// What takes longer, and is asked for once the rest is shown.
function shortest({ notation, source }) {
  const compiled = engine.compile(notation, source);
  return compiled.error ? { compiled } : engine.call('shortest_text');
}

const ANSWERS = { start, explore, shortest };

// While nobody asks, the masks after each token that may come next are made, so that the next answer only reads them.
function prepare() {
  const began = performance.now();
  while (ahead?.length && performance.now() - began < SLICE) if (engine.call('prepare_mask', null, ahead.shift()).error) ahead = null;
  if (ahead?.length) setTimeout(prepare);
}

onmessage = async ({ data }) => {
  const { number, ask } = data;
  try {
    postMessage({ number, answer: await ANSWERS[ask](data) });
  } catch (error) {
    postMessage({ number, answer: { failed: String(error && error.message ? error.message : error) } });
  }
  if (ahead) setTimeout(prepare);
};
