// The page: sends what is typed to the worker, and shows its answers.
'use strict';

const $ = (id) => document.getElementById(id);
const TITLES = { schema: 'Schema', regex: 'Pattern, in Python’s dialect, matched from end to end', lark: 'Grammar, from rule start', gbnf: 'Grammar, from rule root', program: 'Program' };
const EXAMPLES = [
  ['A person', 'schema', '{\n  "type": "object",\n  "properties": {\n    "name": {"type": "string", "minLength": 1, "maxLength": 40},\n    "age": {"type": "integer", "minimum": 0, "maximum": 150},\n    "email": {"type": "string", "format": "email"},\n    "role": {"enum": ["admin", "author", "reader"]}\n  },\n  "required": ["name", "age", "role"]\n}', '{"name": "Ada", "age": 36, "role": "aut'],
  ['A tool call', 'schema', '{\n  "anyOf": [\n    {\n      "type": "object",\n      "properties": {\n        "tool": {"const": "search"},\n        "query": {"type": "string"}\n      },\n      "required": ["tool", "query"]\n    },\n    {\n      "type": "object",\n      "properties": {\n        "tool": {"const": "weather"},\n        "city": {"type": "string"},\n        "days": {"type": "integer", "minimum": 1, "maximum": 14}\n      },\n      "required": ["tool", "city"]\n    }\n  ]\n}', '{"tool": "weather", "city": "Oslo", "days": 1'],
  ['A tree', 'schema', '{\n  "$ref": "#/$defs/node",\n  "$defs": {\n    "node": {\n      "type": "object",\n      "properties": {\n        "value": {"type": "number"},\n        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}\n      },\n      "required": ["value"]\n    }\n  }\n}', '{"value": 1.5, "children": [{"value": 2}'],
  ['A date', 'regex', '(19|20)\\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])', '2024-1'],
  ['An IPv4 address', 'regex', '((25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})', '192.168.2'],
  ['Arithmetic', 'lark', 'start: sum\n\n?sum: product\n    | sum "+" product\n    | sum "-" product\n\n?product: atom\n    | product "*" atom\n    | product "/" atom\n\n?atom: NUMBER\n    | "-" atom\n    | "(" sum ")"\n\n%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n', '(1 + 2) * 3'],
  ['A query', 'lark', 'start: "SELECT" columns "FROM" NAME [where] [limit] ";"\n\ncolumns: "*" | NAME ("," NAME)*\nwhere: "WHERE" condition ("AND" condition)*\ncondition: NAME ("=" | "<" | ">") (NUMBER | STRING)\nlimit: "LIMIT" INT\n\nNAME: /[a-z_]+/\nSTRING: /\'[^\']*\'/\n\n%import common.NUMBER\n%import common.INT\n%import common.WS\n%ignore WS\n', 'SELECT name, age FROM people WHERE age > 3'],
  ['A chess game', 'gbnf', '# moves of chess\nroot   ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+\nmove   ::= (pawn | nonpawn | castle) [+#]?\nnonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\npawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\ncastle ::= "O-O" "-O"?\n', '1. e4 e5\n2. Nf3 N'],
];

const LONGEST_LINK = 1_900_000; // characters after the #; browsers take addresses of two million
const BRIEF = 400; // characters of a text that is shown, not edited

let worker = null, waiting = null, queued = null, number = 0, slow = 0, last = null, tokens = [], program = null, programName = '', notice = '', notation = 'schema';
const drafts = {}; // what was written in each notation

// What the page says of bytes: as text where they are some, else byte by byte.
function shown(bytes) {
  const text = new TextDecoder().decode(Uint8Array.from(bytes));
  if (!text.includes('\ufffd')) return visible(text);
  return Array.from(bytes, (byte) => (byte >= 0x21 && byte < 0x7f ? String.fromCharCode(byte) : '\\x' + byte.toString(16).padStart(2, '0'))).join('');
}
function visible(text) {
  return text.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/\r/g, '␍').replace(/ /g, '·').replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, (c) => '\\x' + c.charCodeAt(0).toString(16).padStart(2, '0'));
}
// The same, shortened where it is long.
function brief(bytes) {
  const text = shown(bytes.slice(0, 4 * BRIEF));
  return text.length <= BRIEF && bytes.length <= 4 * BRIEF ? text : `${text.slice(0, BRIEF)} … (${counted(bytes.length, 'byte')})`;
}
const cut = (text) => (text.length <= BRIEF ? text : text.slice(0, BRIEF) + ' …');
const counted = (count, one, many = one + 's') => `${count.toLocaleString('en')} ${count === 1 ? one : many}`;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function launch() {
  const blob = new Blob([$('worker').textContent], { type: 'text/javascript' });
  worker = new Worker(URL.createObjectURL(blob));
  worker.onmessage = ({ data }) => received(data);
  worker.onerror = (event) => failed(event.message || 'the worker could not start');
  const texts = Object.fromEntries(['module', 'vocabulary', 'library'].map((name) => [name, $('data-' + name).textContent]));
  waiting = { number: ++number, ask: 'start' };
  worker.postMessage({ ...waiting, ...texts });
  say('starting …');
}

function received({ number: answered, answer }) {
  if (!waiting || answered !== waiting.number) return;
  const asked = waiting;
  waiting = null;
  clearTimeout(slow);
  $('stop').hidden = true;
  if (answer.failed) failed(answer.failed);
  else if (asked.ask === 'start') {
    tokens = vocabularyOf(answer.tokens);
    say('');
  } else if (asked.ask === 'shortest') {
    found = { of: asked, tokens: answer.tokens, error: answer.error };
    verdict();
  } else {
    last = { ...answer, asked };
    show();
  }
  const { notation, source } = asked;
  if (queued) {
    const next = queued;
    queued = null;
    send(next);
  } else if (asked.ask === 'explore' && !answer.compiled?.error && !isOf(found, asked)) {
    send({ ask: 'shortest', notation, source });
  }
}

// What is known of the shortest text of a grammar.
let found = null;
function isOf(known, { notation, source }) {
  return known !== null && known.of.notation === notation && known.of.source === source;
}
function verdict() {
  const { compiled, asked } = last;
  let text = `Compiled in ${compiled.milliseconds.toFixed(compiled.milliseconds < 10 ? 1 : 0)} ms.`;
  if (isOf(found, asked)) {
    if (found.error) text += ` Its shortest text: ${found.error}.`;
    else text += found.tokens === null ? ' No tokens of this vocabulary spell a whole text.' : ` The shortest text takes ${counted(found.tokens, 'token')}.`;
  }
  $('verdict').textContent = text;
}

function vocabularyOf(data) {
  const found = [];
  for (let at = 1 + 4 * data[0]; at < data.length; ) {
    let size = data[at++];
    if (size === 255) {
      size = data[at] | (data[at + 1] << 8);
      at += 2;
    }
    found.push(data.subarray(at, at + size));
    at += size;
  }
  return found;
}

function failed(text) {
  waiting = null;
  clearTimeout(slow);
  $('stop').hidden = true;
  say('');
  problem(`The engine stopped: ${text}. It starts again with the next change.`);
  worker.terminate();
  worker = null;
}

function say(text) {
  $('status').textContent = text;
}

function send(question) {
  if (!worker) launch();
  if (waiting) {
    queued = question;
    return;
  }
  waiting = { number: ++number, ...question };
  worker.postMessage(waiting);
  slow = setTimeout(() => {
    $('stop').hidden = false;
    say('working …');
  }, 300);
}

// Stops what runs; the worker is made anew.
function stop() {
  worker?.terminate();
  worker = waiting = queued = null;
  clearTimeout(slow);
  $('stop').hidden = true;
  say('stopped; change the grammar or the text to go on');
}

function ask(position = null) {
  const notation = $('notation').value;
  const source = notation === 'program' ? program : $('source').value;
  if (source === null) return;
  send({ ask: 'explore', notation, source, text: $('text').value, position });
}

let typing = 0;
function changed() {
  clearTimeout(typing);
  typing = setTimeout(() => {
    remember();
    ask();
  }, 60);
}

// The state in the address, so that a link says it all.
function state() {
  const notation = $('notation').value;
  const kept = new URLSearchParams({ [notation]: notation === 'program' ? base64(program || new Uint8Array()) : $('source').value, text: $('text').value });
  if (notation === 'program' && programName) kept.set('name', programName);
  return '#' + kept.toString();
}
function remember() {
  const kept = state();
  try {
    history.replaceState(null, '', kept.length <= LONGEST_LINK ? kept : location.pathname + location.search);
  } catch {
    // some browsers count these calls; the link button still works
  }
}
function base64(bytes) {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join('')).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}
// Takes what the address has; false where it has nothing, or too much.
function restore() {
  if (location.hash.length > LONGEST_LINK) {
    notice = `The link has ${location.hash.length.toLocaleString('en')} characters, and the page takes ${LONGEST_LINK.toLocaleString('en')} at most. An example is shown in its place`;
    return false;
  }
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const notation of ['schema', 'regex', 'lark', 'gbnf', 'program']) {
    if (!kept.has(notation)) continue;
    const value = kept.get(notation);
    if (notation === 'program') {
      try {
        program = Uint8Array.from(atob(value.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));
      } catch {
        program = new Uint8Array();
      }
      programName = kept.get('name') ?? '';
      $('program-option').hidden = false;
      $('program').textContent = `A grammar that structgen compiled${programName && ` from ${cut(programName)}`}: ${counted(program.length, 'byte')}.`;
    }
    choose(notation, notation === 'program' ? '' : value, kept.get('text') ?? '');
    return true;
  }
  return false;
}
function choose(wanted, source, text) {
  $('notation').value = notation = wanted;
  $('source').value = source;
  $('text').value = text;
  retitle();
}
// The same, so that the browser's way back leads to what was there.
function replace(...all) {
  remember();
  choose(...all);
  clearTimeout(typing);
  try {
    if (state().length <= LONGEST_LINK) history.pushState(null, '', state());
  } catch {
    // as above
  }
  ask();
}
function retitle() {
  $('source-label').textContent = TITLES[notation];
  $('source').hidden = $('source-label').hidden = notation === 'program';
  $('program').hidden = notation !== 'program';
}

function problem(text, answer) {
  const box = $('problem');
  box.hidden = !text;
  box.replaceChildren();
  if (!text) return;
  const [begin, end] = answer ? [answer.begin, answer.end] : [0, 0];
  const source = $('source').value;
  const has = answer && end > begin && !$('source').hidden;
  const before = source.slice(0, begin);
  const line = before.split('\n').length, column = begin - (before.lastIndexOf('\n') + 1);
  box.append(element('p', { textContent: (has ? `Line ${line}, column ${column + 1}: ` : '') + cut(text) + '.' }));
  if (has) {
    const whole = source.split('\n')[line - 1] ?? '';
    const from = Math.max(0, column - 40);
    const marked = Math.max(1, Math.min(end - begin, whole.length - column, 60));
    box.append(element('pre', { textContent: whole.slice(from, from + 100) + '\n' + ' '.repeat(column - from) + '^'.repeat(marked) }));
    const button = element('button', { type: 'button', textContent: 'Show in the text' });
    button.onclick = () => {
      $('source').focus();
      $('source').setSelectionRange(begin, end);
    };
    box.append(button);
  }
  if (answer?.kind === 'unread') box.append(element('p', { className: 'dim', textContent: 'structgen itself may read it: structgen playground FILE makes a link to this page with the compiled grammar.' }));
}

function show() {
  const { compiled, walked, place, position } = last;
  const bad = Boolean(compiled.error);
  $('forced').disabled = $('shortest').disabled = true;
  if (bad) {
    problem(compiled.error, compiled);
    $('verdict').textContent = '';
    $('tokens').replaceChildren();
    $('place').replaceChildren(element('p', { className: 'dim', textContent: 'There is no grammar yet.' }));
    say('');
    return;
  }
  problem('');
  verdict();
  say(walked.error ? walked.error : walked.steps.length ? `slowest mask ${walked.slowest.toFixed(2)} ms` : '');
  announce(walked, place, position);
  list(walked, position);
  detail(walked, place, position);
}

function list({ ids, steps, taken }, position) {
  const items = ids.map((id, at) => {
    const step = steps[at];
    const state = at < taken ? (step.allowed === 1 ? 'one' : 'free') : at === taken && step ? 'refused' : 'after';
    const item = element('span', { className: `token ${state}`, id: `token-${at}` }, element('span', { textContent: shown(tokens[id]) }), element('small', { textContent: step ? step.allowed.toLocaleString('en') : ' ' }));
    item.setAttribute('role', 'option');
    item.setAttribute('aria-label', `${shown(tokens[id])}: ${state === 'refused' ? 'refused' : state === 'after' ? 'not reached' : 'taken'}${step ? `, ${counted(step.allowed, 'token')} allowed here` : ''}`);
    if (at <= taken) item.onclick = () => ask(at);
    return item;
  });
  if (taken === ids.length) {
    const end = element('span', { className: 'token end', id: `token-${ids.length}`, textContent: 'next' });
    end.setAttribute('role', 'option');
    end.onclick = () => ask(ids.length);
    items.push(end);
  }
  for (const [at, item] of items.entries()) item.setAttribute('aria-selected', String(at === position));
  $('tokens').replaceChildren(...items);
  $('tokens').setAttribute('aria-activedescendant', `token-${position}`);
  items[position]?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
}

// What a screen reader says of a new place, once typing pauses.
let speaking = 0;
function announce({ ids, taken }, place, position) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const refused = taken < ids.length && position === taken ? `${shown(tokens[ids[taken]])} is refused. ` : '';
    $('announcement').textContent = place.error ? place.error : `${refused}${counted(place.allowed, 'token')} allowed${place.ends ? ', the end among them' : ''}.${place.forced.length ? ` Forced: ${brief(place.forced)}` : ''}`;
  }, 500);
}

function detail({ ids, taken }, place, position) {
  const box = $('place');
  box.replaceChildren();
  if (place.error) {
    box.append(element('div', { className: 'refusal' }, element('p', { textContent: `${place.error}.` })));
    return;
  }
  const isLast = position === ids.length;
  const others = place.allowed - (place.ends ? 1 : 0);
  const why = place.why;
  box.append(element('p', { className: 'big' }, isLast ? '' : 'In the place of ', ...(isLast ? [] : [element('code', { textContent: shown(tokens[ids[position]]) }), ': ']), `${counted(place.allowed, 'token')} allowed`, place.ends ? ', the end among them' : ''));
  if (why?.refused) box.append(refusal(ids[position], why, place));
  const facts = element('dl');
  const fact = (name, ...value) => facts.append(element('dt', { textContent: name }), element('dd', {}, ...value));
  if (place.forced.length) fact('forced text', element('code', { textContent: brief(place.forced) }));
  else fact('forced text', place.allowed === 1 && place.ends ? 'the end' : 'none: there is a choice');
  const completion = place.completion.filter((byte) => byte >= 0);
  fact('shortest completion', ...(place.tokens === null ? ['there is none'] : place.completion.length === 0 ? ['none is needed: the text may end here'] : [element('code', { textContent: brief(completion) }), ` (at least ${counted(place.tokens, 'token')})`]));
  fact('may end here', place.ends ? 'yes' : 'no');
  if (place.rules.length) fact('inside of', place.rules.map(cut).join(' › '));
  box.append(facts);
  if (others > 0) {
    const shownCount = place.shown.length;
    box.append(element('h3', { textContent: shownCount < others ? `Allowed: the ${shownCount} of ${others.toLocaleString('en')} that the tokenizer learnt first` : 'Allowed' }));
    const items = place.shown.map((id) => {
      const button = element('button', { type: 'button', className: 'mono', textContent: shown(tokens[id]), title: `token ${id}: write it here` });
      button.onclick = () => replaceFrom(ids, position, tokens[id]);
      return element('li', {}, button);
    });
    box.append(element('ul', { className: 'list' }, ...items));
  }
  if (position === ids.length) {
    $('forced').disabled = place.forced.length === 0;
    $('shortest').disabled = completion.length === 0;
    $('forced').onclick = () => replaceFrom(ids, position, Uint8Array.from(place.forced));
    $('shortest').onclick = () => replaceFrom(ids, position, Uint8Array.from(completion));
  }
}

function refusal(id, why, place) {
  const text = tokens[id];
  const box = element('div', { className: 'refusal' });
  const line = element('p', {}, element('code', { textContent: shown(text) }), ' is refused: ');
  if (why.taken >= text.length) line.append('its text could come, but not as this token.');
  else {
    if (why.taken > 0) line.append('after ', element('code', { textContent: shown(text.subarray(0, why.taken)) }), ', ');
    line.append(why.bytes.length === 0 ? (why.ends ? 'the text is complete and nothing may follow' : 'nothing may follow') : 'what may come is ');
    if (why.bytes.length) line.append(element('code', { textContent: ranges(why.bytes) }));
    line.append(', not ', element('code', { textContent: shown(text.subarray(why.taken, why.taken + 1)) }), '.');
  }
  box.append(line);
  if (why.nearest !== undefined) box.append(element('p', {}, 'The nearest token that may come: ', element('code', { textContent: shown(tokens[why.nearest]) })));
  if (why.rules.length) box.append(element('p', { className: 'dim', textContent: `inside of ${why.rules.map(cut).join(' › ')}` }));
  return box;
}

// Bytes as a class: "a-z, 0-9".
function ranges(bytes) {
  const parts = [];
  for (let i = 0; i < bytes.length; ) {
    let j = i;
    while (j + 1 < bytes.length && bytes[j + 1] === bytes[j] + 1) ++j;
    const ends = [shown([bytes[i]]), shown([bytes[j]])];
    parts.push(j - i > 1 ? ends.join('–') : j > i ? ends.join(' ') : ends[0]);
    i = j + 1;
  }
  return parts.length > 24 ? parts.slice(0, 24).join(' ') + ' …' : parts.join(' ');
}

function replaceFrom(ids, position, bytes) {
  const all = [...ids.slice(0, position).map((id) => tokens[id]), bytes];
  const data = new Uint8Array(all.reduce((sum, part) => sum + part.length, 0));
  all.reduce((at, part) => (data.set(part, at), at + part.length), 0);
  $('text').value = new TextDecoder().decode(data);
  changed();
  $('text').focus();
}

const NAMES = { schema: 'JSON Schema', regex: 'regular expression', lark: 'Lark', gbnf: 'GBNF' };
for (const [title, ...all] of EXAMPLES) {
  const button = element('button', { type: 'button', textContent: title, title: NAMES[all[0]] });
  button.onclick = () => replace(...all);
  $('examples').append(button);
}
$('notation').onchange = () => {
  drafts[notation] = [notation, $('source').value, $('text').value];
  const wanted = $('notation').value;
  $('notation').value = notation; // so that the way back leads there
  const found = drafts[wanted] ?? (wanted === 'program' ? [wanted, '', ''] : EXAMPLES.find((one) => one[1] === wanted).slice(1));
  replace(...found);
};
$('source').oninput = $('text').oninput = changed;
$('stop').onclick = stop;
$('link').onclick = async () => {
  const kept = state();
  if (kept.length > LONGEST_LINK) {
    say(`this is too long for a link: it would have ${kept.length.toLocaleString('en')} characters, and browsers take two million`);
    return;
  }
  remember();
  try {
    await navigator.clipboard.writeText(location.href.split('#')[0] + kept);
    say('the link is copied');
  } catch {
    say('the link is in the address bar');
  }
};
$('tokens').onkeydown = (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!last?.walked || (!step && event.key !== 'Home' && event.key !== 'End')) return;
  event.preventDefault();
  const highest = last.walked.taken;
  ask(event.key === 'Home' ? 0 : event.key === 'End' ? highest : Math.min(highest, Math.max(0, last.position + step)));
};
onhashchange = () => {
  if (location.hash === state()) return;
  if (restore()) ask();
  else if (notice) remember();
  tell();
};
// What has to be said of the address.
function tell() {
  $('notice').textContent = notice && `${notice}.`;
  $('notice').hidden = !notice;
  notice = '';
}
if (!restore()) choose(...EXAMPLES[0].slice(1));
tell();
launch();
ask();
