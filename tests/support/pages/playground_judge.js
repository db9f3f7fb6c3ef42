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

// What becomes of hostile texts, each in each notation: the answers, and what is wrong with them.
function survive(engine, texts) {
  const faults = [], kinds = {};
  for (const [name, source] of texts)
    for (const notation of ['schema', 'regex', 'lark', 'gbnf']) {
      let answer = {};
      const wrong = (why) => faults.push([name, notation, why, answer.error?.slice(0, 200)]);
      try {
        answer = engine.compile(notation, source);
        for (let masks = 0; !answer.error && masks < 5; ++masks) {
          const mask = engine.mask();
          if (mask.error) answer = mask;
          const word = mask.error ? -1 : mask.words.findIndex((bits, at) => bits && at > 1);
          if (word < 0 || !engine.call('accept_token', null, word * 32 + 31 - Math.clz32(mask.words[word])).accepted) break;
        }
      } catch (error) {
        wrong(`the module failed: ${error}`);
        throw new Error(JSON.stringify(faults));
      }
      const kind = answer.error ? answer.kind : 'read';
      kinds[kind] = (kinds[kind] || 0) + 1;
      if (kind === 'read') continue;
      if (!['unread', 'source', 'limit'].includes(kind)) wrong(`its kind is ${kind}`);
      if (!(answer.error.length > 10) || answer.error.includes('std::')) wrong('the message says nothing');
      if (kind !== 'limit' && !(answer.begin >= 0 && answer.end <= Math.max(1, source.length) && (answer.end > answer.begin || source.length === 0 || answer.end === 0))) wrong(`its place is ${answer.begin}-${answer.end}`);
    }
  return { faults, kinds };
}

// The steps of a mask after a text and a token, and the same where the mask was made ahead.
function aheadOf(engine, [notation, source, text, token]) {
  const steps = [];
  for (const isAhead of [false, true]) {
    if (!engine.compile('gbnf', 'root ::= "a" root').error) throw new Error('a grammar without texts is read'); // and so the next begins anew
    engine.compile(notation, source);
    engine.walk(text);
    if (isAhead) engine.call('prepare_mask', null, token);
    const before = engine.mask();
    engine.call('accept_token', null, token);
    const after = engine.mask();
    steps.push({ steps: after.steps, allowed: after.allowed, before: before.allowed });
  }
  return steps;
}

// Texts for which `jsonFault` and JSON.parse disagree.
function jsonFaults(texts) {
  return texts.filter((text) => {
    const fault = jsonFault(text);
    let is = true;
    try {
      JSON.parse(text);
    } catch {
      is = false;
    }
    const isTwice = fault !== null && fault[0].includes('occurs twice');
    return is !== (fault === null || isTwice) || (fault !== null && !(fault[1] >= 0 && fault[1] + fault[2] <= Math.max(1, text.length)));
  });
}

if (typeof module !== 'undefined') {
  module.exports = { judge, survive };
  if (require.main === module) {
    // node playground_judge.js PARTS PAGE judge|survive|tokenize|compile|ahead|json < JSON
    const { readFileSync } = require('node:fs');
    const [parts, page, what] = process.argv.slice(2);
    const createModule = require(`${parts}/module.js`);
    const { Engine, jsonFault: found } = require(`${page}/engine.js`);
    globalThis.jsonFault = found;
    const bytes = (name) => new Uint8Array(readFileSync(`${parts}/${name}`));
    createModule({ wasmBinary: bytes('module.wasm') }).then((made) => {
      const engine = new Engine(made, bytes('vocabulary.bin'), bytes('library.json'));
      const input = JSON.parse(readFileSync(0, 'utf-8'));
      const answers = {
        judge: () => judge(engine, input),
        survive: () => survive(engine, input),
        tokenize: () => input.map((text) => engine.vocabulary.tokenize(text)),
        ahead: () => input.map((one) => aheadOf(engine, one)),
        json: () => jsonFaults(input),
        compile: () => input.map(([notation, source]) => engine.compile(notation, source)),
      };
      process.stdout.write(JSON.stringify(answers[what]()));
    });
  }
}
