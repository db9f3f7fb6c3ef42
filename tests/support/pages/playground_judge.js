// Compares the playground's module with cases of playground_cases.py: in Node, and in a page that has `createModule` and `Engine`.
'use strict';

const TABLE = Uint32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; ++bit) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value >>> 0;
});

// The CRC-32 of the bytes of words.
function checksum(words) {
  let sum = 0xffffffff;
  for (const byte of new Uint8Array(words.buffer, words.byteOffset, words.byteLength)) sum = TABLE[(sum ^ byte) & 0xff] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

// What is wrong with a case, or null; the slowest mask in milliseconds, by `found.slowest`.
function fault(engine, one, found) {
  const compiled = engine.compile(one.notation, one.notation === 'program' ? Uint8Array.from(one.source) : one.source);
  if (compiled.error) return `not compiled: ${compiled.error} (${compiled.kind}, ${compiled.begin}-${compiled.end})`;
  engine.call('reset_text');
  for (let at = 0; at <= one.tokens.length; ++at) {
    const began = performance.now();
    const mask = engine.call('fill_mask');
    found.times.push(performance.now() - began);
    if (mask.error) return mask.error;
    const words = engine.mask().words;
    if (checksum(words) !== one.masks[at][0] || mask.allowed !== one.masks[at][1]) return `mask ${at}: ${mask.allowed} tokens, not ${one.masks[at][1]}`;
    if (at < one.tokens.length && !engine.call('accept_token', null, one.tokens[at]).accepted) return `token ${at} is refused`;
  }
  const end = engine.call('describe');
  if (end.error) return end.error;
  if (end.tokens !== one.shortest) return `the shortest completion takes ${end.tokens} tokens, not ${one.shortest}`;
  if (JSON.stringify(end.forced) !== JSON.stringify(one.forced)) return `forced is ${JSON.stringify(end.forced)}, not ${JSON.stringify(one.forced)}`;
  return null;
}

function judge(engine, cases) {
  const found = { faults: [], times: [] };
  for (const one of cases) {
    const wrong = fault(engine, one, found);
    if (wrong) found.faults.push([one.notation, one.notation === 'program' ? 'program' : one.source, wrong]);
  }
  return { count: cases.length, faults: found.faults, times: found.times };
}

// What becomes of hostile texts: the answer to each, and the time that it took in milliseconds.
function survive(engine, texts) {
  return texts.map(([name, notation, source]) => {
    const began = performance.now();
    const compiled = engine.compile(notation, source);
    let masks = 0;
    for (let error = compiled.error; !error && masks < 5; ++masks) {
      const mask = engine.mask();
      error = mask.error;
      if (error) break;
      const token = mask.words.findIndex((word, at) => word && at * 32 > 32);
      if (token < 0) break;
      const bit = 31 - Math.clz32(mask.words[token]);
      if (!engine.call('accept_token', null, token * 32 + bit).accepted) break;
    }
    return { name, error: compiled.error || '', kind: compiled.kind || '', masks, milliseconds: performance.now() - began };
  });
}

if (typeof module !== 'undefined') {
  module.exports = { judge, survive };
  if (require.main === module) {
    // node playground_judge.js PARTS PAGE judge|survive|tokenize|compile < JSON
    const { readFileSync } = require('node:fs');
    const [parts, page, what] = process.argv.slice(2);
    const createModule = require(`${parts}/module.js`);
    const { Engine } = require(`${page}/engine.js`);
    const bytes = (name) => new Uint8Array(readFileSync(`${parts}/${name}`));
    createModule({ wasmBinary: bytes('module.wasm') }).then((made) => {
      const engine = new Engine(made, bytes('vocabulary.bin'), bytes('library.json'));
      const input = JSON.parse(readFileSync(0, 'utf-8'));
      const answers = {
        judge: () => judge(engine, input),
        survive: () => survive(engine, input),
        tokenize: () => input.map((text) => engine.vocabulary.tokenize(text)),
        compile: () => input.map(([notation, source]) => engine.compile(notation, source)),
      };
      process.stdout.write(JSON.stringify(answers[what]()));
    });
  }
}
