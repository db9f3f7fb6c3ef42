// The engine of module.cpp with its tokenizer, in a worker of the page or in Node.
'use strict';

const NOTATIONS = { program: 0, schema: 1, regex: 2, lark: 3, gbnf: 4 };
const FEW_TOKENS = 4000; // of a text, the rest is not looked at
const MOST_JOINED = 400; // bytes of a piece whose pairs are joined at once, which bounds the work
const SHOWN_TOKENS = 240; // of those that may come next
const OUTER_RULES = 4, INNER_RULES = 8; // of those around a place

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
      const bytes = encoder.encode(piece);
      const known = bytes.length <= MOST_JOINED ? this.ids.get(asKey(bytes)) : undefined;
      if (known !== undefined) ids.push(known);
      else for (let at = 0; at < bytes.length && ids.length < FEW_TOKENS; at += MOST_JOINED) ids.push(...this.join(bytes.subarray(at, at + MOST_JOINED)));
      if (ids.length >= FEW_TOKENS) break;
    }
    return ids.slice(0, FEW_TOKENS);
  }

  join(bytes) {
    let parts = Array.from(bytes, (byte) => String.fromCharCode(byte));
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
      const wrong = notation === 'schema' && answer.kind === 'source' ? jsonFault(source) : null;
      if (wrong) [answer.error, answer.begin, answer.end] = [`this is no JSON: ${wrong[0]}`, wrong[1], wrong[1] + wrong[2]];
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
    if (found.error) return { error: found.error };
    found.rules = fewer(found.rules);
    if (position < ids.length) {
      found.token = ids[position];
      found.why = { ...this.call('explain', this.vocabulary.tokens[ids[position]]), refused: position >= taken };
      if (found.why.error) return { error: found.why.error };
      found.why.rules = fewer(found.why.rules);
      const bytes = this.vocabulary.tokens[ids[position]];
      for (let size = bytes.length; size > 0 && found.why.nearest === undefined; --size) {
        const id = this.vocabulary.ids.get(asKey(bytes.subarray(0, size)));
        if (id !== undefined && (mask.words[id >> 5] >>> (id & 31)) & 1) found.why.nearest = id;
      }
    }
    return found;
  }
}

// The rules around a place, without those between where they are many.
function fewer(rules) {
  return rules.length <= OUTER_RULES + INNER_RULES ? rules : [...rules.slice(0, OUTER_RULES), `… ${rules.length - OUTER_RULES - INNER_RULES} more …`, ...rules.slice(-INNER_RULES)];
}

// Why a text is no JSON, and where: [problem, offset, length]; null where it is.  It stops at the first fault.
function jsonFault(text) {
  const DEEPEST = 200;
  const space = /[ \t\n\r]*/y, number = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y, word = /true|false|null/y;
  const escape = /\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})/y;
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found && found[0];
  };
  const open = []; // the names of each object that is open, null for an array
  const fault = (problem) => [at >= text.length ? `the text ends where ${problem}` : problem, Math.min(at, Math.max(0, text.length - 1)), 1];
  // What is wrong with the string that begins here, or null.
  const stringFault = () => {
    const begin = at++;
    for (; at < text.length && text[at] !== '"'; ) {
      if (text[at] === '\\') {
        if (!take(escape)) return fault('this escape is none of JSON');
      } else if (text[at++] < ' ') {
        --at;
        return fault('this character has to be escaped in a string');
      }
    }
    return at++ < text.length ? null : ['this string is not closed', begin, 1];
  };
  let wants = 'value'; // value, first value, first name, name, end
  for (;;) {
    take(space);
    const c = text[at];
    if (wants === 'end') {
      if (!open.length) return at < text.length ? fault('nothing may follow the value') : null;
      const names = open[open.length - 1];
      if (c === ',') {
        ++at;
        wants = names ? 'name' : 'value';
      } else if (c === (names ? '}' : ']')) {
        ++at;
        open.pop();
      } else {
        return fault(`a comma or ${names ? '}' : ']'} has to come`);
      }
    } else if (wants.endsWith('name')) {
      if (wants === 'first name' && c === '}') {
        ++at;
        open.pop();
        wants = 'end';
        continue;
      }
      const begin = at;
      const wrong = c === '"' ? stringFault() : fault('a name in double quotes has to come');
      if (wrong) return wrong;
      const names = open[open.length - 1], name = text.slice(begin, at), read = JSON.parse(name);
      if (names.has(read)) return [`the name ${name.slice(0, 40)} occurs twice`, begin, name.length];
      names.add(read);
      take(space);
      if (text[at] !== ':') return fault('a colon has to come after a name');
      ++at;
      wants = 'value';
    } else if (wants === 'first value' && c === ']') {
      ++at;
      open.pop();
      wants = 'end';
    } else if (c === '{' || c === '[') {
      if (open.length === DEEPEST) return fault('more than 200 arrays and objects are around each other');
      ++at;
      open.push(c === '{' ? new Set() : null);
      wants = c === '{' ? 'first name' : 'first value';
    } else {
      const wrong = c === '"' ? stringFault() : take(number) || take(word) ? null : fault('a value has to come');
      if (wrong) return wrong;
      wants = 'end';
    }
  }
}

function now() {
  return performance.now();
}

if (typeof module !== 'undefined') module.exports = { Engine, Vocabulary, NOTATIONS, jsonFault };
