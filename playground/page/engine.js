// The engine of module.cpp with its tokenizer, in a worker of the page or in Node.
'use strict';

const NOTATIONS = { program: 0, schema: 1, regex: 2, lark: 3, gbnf: 4 };
const FEW_TOKENS = 4000; // of a text, the rest is not looked at
const SHOWN_TOKENS = 240; // of those that may come next

class Vocabulary {
  // data: as `load_vocabulary` of module.cpp takes it.
  constructor(data) {
    let at = 1 + 4 * data[0];
    this.eos = Array.from({ length: data[0] }, (_, i) => data[1 + 4 * i] | (data[2 + 4 * i] << 8) | (data[3 + 4 * i] << 16));
    this.tokens = [];
    this.ids = new Map(); // by the bytes as a string of as many characters
    while (at < data.length) {
      let size = data[at++];
      if (size === 255) {
        size = data[at] | (data[at + 1] << 8);
        at += 2;
      }
      if (size) this.ids.set(asKey(data.subarray(at, at + size)), this.tokens.length);
      this.tokens.push(data.subarray(at, at + size));
      at += size;
    }
  }

  // The tokens of a text as the model's tokenizer writes them: pieces of GPT-2, single digits, and byte pairs that are
  // joined by the smallest id first, which is the order in which they were learnt.
  tokenize(text) {
    const pieces = text.split(/(\p{N})/u).flatMap((part) => part.match(/'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu) || []);
    const ids = [];
    const encoder = new TextEncoder();
    for (const piece of pieces) {
      const known = this.ids.get(asKey(encoder.encode(piece)));
      if (known !== undefined) ids.push(known);
      else ids.push(...this.join(encoder.encode(piece)));
      if (ids.length > FEW_TOKENS) break;
    }
    return ids.slice(0, FEW_TOKENS);
  }

  join(bytes) {
    let parts = Array.from(bytes, (byte) => String.fromCharCode(byte));
    if (parts.length > 400) return [...this.join(bytes.subarray(0, 400)), ...this.join(bytes.subarray(400))]; // bounded work
    for (;;) {
      let best = Infinity, where = -1;
      for (let i = 0; i + 1 < parts.length; ++i) {
        const id = this.ids.get(parts[i] + parts[i + 1]);
        if (id !== undefined && id < best) {
          best = id;
          where = i;
        }
      }
      if (where < 0) break;
      const left = parts[where], right = parts[where + 1], joined = [];
      for (let i = 0; i < parts.length; ++i) {
        if (parts[i] === left && parts[i + 1] === right) {
          joined.push(left + right);
          ++i;
        } else {
          joined.push(parts[i]);
        }
      }
      parts = joined;
    }
    return parts.map((part) => this.ids.get(part)).filter((id) => id !== undefined);
  }
}

function asKey(bytes) {
  return String.fromCharCode(...bytes);
}

class Engine {
  constructor(module, vocabulary, library) {
    this.module = module;
    this.vocabulary = new Vocabulary(vocabulary);
    this.call('load_vocabulary', vocabulary);
    this.call('load_library', library);
    this.compiled = null; // what was compiled last, and the answer
  }

  // The answer of a function of the module; `data` is its argument, in bytes.
  call(name, data, ...numbers) {
    const module = this.module;
    if (data) {
      const at = module._argument(data.length);
      module.HEAPU8.set(data, at);
    }
    const size = module['_' + name](...numbers);
    const at = module._answer();
    return JSON.parse(new TextDecoder().decode(module.HEAPU8.slice(at, at + size)));
  }

  // notation: of NOTATIONS; source: text, or the bytes of a program.  An answer with `error` where it is refused.
  compile(notation, source) {
    const last = this.compiled;
    if (last && last.notation === notation && last.source === source) return last.answer;
    const data = typeof source === 'string' ? new TextEncoder().encode(source) : source;
    const began = now();
    const answer = this.call('compile', data, NOTATIONS[notation]);
    answer.milliseconds = now() - began;
    if (answer.error && typeof source === 'string') {
      const before = (offset) => new TextDecoder().decode(data.subarray(0, offset)).length;
      [answer.begin, answer.end] = [before(answer.begin), before(answer.end)]; // of the text, not of its bytes
      if (notation === 'schema' && answer.kind === 'source') placeJsonError(source, answer);
    }
    this.compiled = answer.error ? null : { notation, source, answer };
    return answer;
  }

  mask() {
    const answer = this.call('fill_mask');
    const words = (this.vocabulary.tokens.length + 31) >> 5;
    const at = this.module._mask_words() >> 2;
    answer.words = this.module.HEAPU32.slice(at, at + words);
    return answer;
  }

  // How a text fares: for each token how many might have come in its place, and whether it was taken.
  walk(text) {
    this.call('reset_text');
    const ids = this.vocabulary.tokenize(text);
    const steps = [];
    let slowest = 0, taken = 0;
    for (const id of ids) {
      const began = now();
      const { allowed, ends, error } = this.call('fill_mask');
      slowest = Math.max(slowest, now() - began);
      if (error) return { ids, steps, taken, slowest, error };
      steps.push({ allowed, ends });
      if (!this.call('accept_token', null, id).accepted) break;
      ++taken;
    }
    return { ids, steps, taken, slowest };
  }

  // All that is known before token `position` of a text that walk() has seen.
  look(ids, position, taken) {
    this.call('reset_text');
    for (const id of ids.slice(0, position)) this.call('accept_token', null, id);
    const mask = this.mask();
    if (mask.error) return { error: mask.error };
    const tokens = [];
    for (let id = 0; id < this.vocabulary.tokens.length && tokens.length < SHOWN_TOKENS; ++id)
      if ((mask.words[id >> 5] >>> (id & 31)) & 1 && !this.vocabulary.eos.includes(id)) tokens.push(id);
    const found = { ...this.call('describe'), allowed: mask.allowed, ends: mask.ends, shown: tokens };
    if (position < ids.length) {
      found.token = ids[position];
      found.why = { ...this.call('explain', this.vocabulary.tokens[ids[position]]), refused: position >= taken };
      const bytes = this.vocabulary.tokens[ids[position]];
      for (let size = bytes.length; size > 0 && found.why.nearest === undefined; --size) {
        const id = this.vocabulary.ids.get(asKey(bytes.subarray(0, size)));
        if (id !== undefined && (mask.words[id >> 5] >>> (id & 31)) & 1) found.why.nearest = id;
      }
    }
    return found;
  }
}

// Where a text is no JSON, as the browser finds it; some do not tell.
function placeJsonError(source, answer) {
  try {
    JSON.parse(source);
  } catch (error) {
    const place = /position (\d+)/.exec(error.message);
    if (!place) return;
    answer.error = 'this is no JSON';
    answer.begin = Math.min(Number(place[1]), Math.max(0, source.length - 1));
    answer.end = answer.begin + 1;
  }
}

function now() {
  return performance.now();
}

if (typeof module !== 'undefined') module.exports = { Engine, Vocabulary, NOTATIONS };
