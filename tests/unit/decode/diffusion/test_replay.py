"""The page that replays how a canvas was filled, and the display of slots as text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import unicodedata
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen.decode.diffusion.canvas_run import Snapshot
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.replay import END, Recorder, Replay, replay_page, slot_text, visible
from structgen.engine import Vocabulary
from structgen.models.diffusion import HashDiffusion

HOSTILE = [
    "</script>",
    "<script>alert(1)</script>",
    "<!--",
    "]]>",
    "&lt;",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "{{title}}",
    "{{sections}}",
    "\x1b[2J\x07",
    "\u202eabc",
    "\u2028",
    "\x00",
    "\n\r\t",
    "😀é",
]
PIECES = [b"", *(text.encode() for text in HOSTILE), b"\xe2\x82", b"\xff", b"a", b"", b""]
EOS, SPECIAL, MASK = 0, len(PIECES) - 2, len(PIECES) - 1
VOCABULARY = Vocabulary(PIECES, eos=[EOS], special={SPECIAL: "<b>\x1b", MASK: "<mask>"})


class _Page(HTMLParser):
    """The document that a browser would see: elements with attributes, and texts outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.code: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.code.append(data)
        else:
            self.text += data

    def slots(self) -> list[dict[str, str | None]]:
        return [
            attributes
            for _, attributes in self.elements
            if "slot" in (attributes.get("class") or "").split() and "data-at" in attributes
        ]


def _snapshot(canvas: Sequence[int], forwards: int, committed: Sequence[int] = ()) -> Snapshot:
    none = np.zeros(0, dtype=np.intp)
    return Snapshot(np.array(canvas, dtype=np.int32), np.array(committed, dtype=np.intp), forwards, none)


def _replay(canvas: Sequence[int], **settings: Any) -> Replay:
    steps = [_snapshot([FREE] * len(canvas), 0), _snapshot(canvas, 1, range(len(canvas)))]
    return Replay(steps, VOCABULARY, np.full(len(canvas), 0.5), **settings)


def test_nothing_that_tokens_hold_becomes_markup() -> None:
    """Every hostile token is text in one slot, and creates no element, attribute or script."""
    plain = _Page(replay_page([_replay([VOCABULARY.tokens.index(b"a")] * len(PIECES))]))
    hostile = _Page(replay_page([_replay(list(range(len(PIECES))))]))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert hostile.code == plain.code
    assert len(hostile.code) == 2
    names = {name for _, attributes in hostile.elements for name in attributes}
    assert names == {name for _, attributes in plain.elements for name in attributes}
    assert not any(name.startswith("on") for name in names)
    assert hostile.open == []
    for text in HOSTILE:
        assert visible(text) in hostile.text


def test_headings_and_titles_are_text_too() -> None:
    """User-given names are text, and those that look like template fields stay unchanged."""
    page = _Page(
        replay_page([_replay([1], name="</section><script>x</script>{{title}}")], title="</title>{{sections}}\x1b")
    )
    assert len(page.code) == 2
    assert "</section><script>x</script>{{title}}" in page.text
    assert "</title>{{sections}}␛" in page.text


def test_the_page_is_alone() -> None:
    """The page has no address and no library; the browser is told to load nothing."""
    page = replay_page([_replay([1, 2])])
    assert not re.search(r"https?:|//[a-z]|src=|href=|@import|url\(|fetch|XMLHttp|import\s*\(", _without_texts(page))
    parsed = _Page(page)
    policies = [a["content"] for tag, a in parsed.elements if tag == "meta" and "http-equiv" in a]
    blocks = (page.partition(f"<{kind}>")[2].partition(f"</{kind}>")[0] for kind in ("style", "script"))
    hashes = [b64encode(sha256(block.encode()).digest()).decode() for block in blocks]
    allowed = f"style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    assert policies == [f"default-src 'none'; base-uri 'none'; form-action 'none'; {allowed}"]
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in parsed.elements}


def _without_texts(page: str) -> str:
    return re.sub(r"<bdi.*?</bdi>", "", page)


def test_the_page_can_be_used_without_a_mouse_and_without_eyes() -> None:
    """Language, title, named controls, a region that announces the step, and the canvas without scripts exist."""
    parsed = _Page(replay_page([_replay([1, 2]), _replay([2, 1], name="second")]))
    elements = parsed.elements
    assert ("html", {"lang": "en"}) in elements
    assert sum(tag == "title" for tag, _ in elements) == 1
    buttons = [attributes for tag, attributes in elements if tag == "button"]
    assert len(buttons) == 2 * 5
    assert all(button["aria-label"] and button["type"] == "button" for button in buttons)
    sliders = [attributes for tag, attributes in elements if tag == "input"]
    assert [(slider["type"], slider["max"]) for slider in sliders] == [("range", "1")] * 2
    assert all(slider["aria-label"] for slider in sliders)
    assert sum(attributes.get("role") == "status" for _, attributes in elements) == 2
    assert [a["aria-label"] for tag, a in elements if tag == "section"] == ["canvas 1", "second"]
    assert parsed.text.count("step 1 of 1: 2 of 2 slots filled after 1 forward pass\n") == 2


def test_slots_say_when_they_were_filled_and_how_surely() -> None:
    """In a real run each slot has its step, shade and probability, and the steps have their passes."""
    model = HashDiffusion(VOCABULARY, seed=1)
    recorder = Recorder()
    result = sg.generate(
        model, "", sg.regex("a{1,3}(é|&lt;)*"), canvas=6, policy=sg.policies.Static(per_step=2), stream=recorder
    )
    (replay,) = recorder.replays([result])
    page = _Page(replay_page([replay]))
    slots = page.slots()
    assert result.canvas is not None
    assert len(slots) == 6
    for slot, attributes in enumerate(slots):
        step = next(number for number, shot in enumerate(replay.snapshots) if shot.canvas[slot] != FREE)
        assert attributes["data-at"] == str(step)
        title = attributes["title"] or ""
        assert title.startswith(f"slot {slot}: step {step}")
        if slot < len(result.steps):
            probability = float(np.exp(result.steps[slot].logprob))
            assert f"probability {probability:.3g}" in title
            assert f"c{min(int(probability * 10), 9)}" in (attributes["class"] or "").split()
    section = next(attributes for tag, attributes in page.elements if tag == "section")
    assert section["data-forwards"] == ",".join(str(shot.forwards) for shot in replay.snapshots)


def test_slots_that_stood_before_have_no_probability() -> None:
    """The model did not choose the slots that the user fixed."""
    model = HashDiffusion(VOCABULARY)
    a = VOCABULARY.tokens.index(b"a")
    recorder = Recorder()
    result = sg.generate(model, "", sg.regex("a{3}"), canvas=np.array([FREE, a, FREE]), stream=recorder)
    (replay,) = recorder.replays([result])
    assert np.isnan(replay.confidences).tolist() == [False, True, False]
    slots = _Page(replay_page([replay])).slots()
    assert "unknown" in (slots[1]["class"] or "")
    assert "probability" not in (slots[1]["title"] or "")


def test_a_recorder_tells_canvases_apart() -> None:
    """Canvases match outputs in order; canvases without an output are left out, foreign outputs are refused."""
    model = HashDiffusion(VOCABULARY)
    recorder = Recorder()
    grammar = sg.regex("[aé]{3}")
    results = [
        sg.generate(model, "", grammar, canvas=3, sampler=sg.diffusion.Posterior(), seed=seed, stream=recorder)
        for seed in range(3)
    ]
    replays = recorder.replays([results[0], results[2]], names=["first"])
    assert [replay.name for replay in replays] == ["first", ""]
    for replay, result in zip(replays, (results[0], results[2]), strict=True):
        assert result.canvas is not None
        assert replay.snapshots[-1].canvas.tolist() == list(result.canvas.tokens)
        assert replay.snapshots[0].forwards == 0
    other = sg.generate(model, "", sg.literal("aa"), canvas=2)
    with pytest.raises(ValueError, match="output 1 is on none of the 3 canvases"):
        recorder.replays([other])


def test_what_is_no_replay_is_refused() -> None:
    """No snapshots, snapshots of two canvases, and confidences of another canvas are refused."""
    one = np.full(1, 0.5)
    with pytest.raises(ValueError, match="at least one snapshot"):
        Replay([], VOCABULARY, one)
    with pytest.raises(ValueError, match="snapshot 2 is of another canvas"):
        Replay([_snapshot([1], 0), _snapshot([2], 1)], VOCABULARY, one)
    with pytest.raises(ValueError, match="snapshot 2 is of another canvas"):
        Replay([_snapshot([1], 0), _snapshot([1, 2], 1)], VOCABULARY, one)
    with pytest.raises(ValueError, match="2 confidences for 1 slots"):
        Replay([_snapshot([1], 0)], VOCABULARY, np.zeros(2))
    with pytest.raises(ValueError, match="nothing to replay"):
        replay_page([])


def test_slots_are_shown_safely() -> None:
    """No character of a slot acts on a terminal, and none is invisible."""
    for token in range(len(PIECES)):
        shown = slot_text(VOCABULARY, token)
        assert shown
        assert shown.isprintable()
        assert all(unicodedata.category(each)[0] not in "CZ" or each == " " for each in shown)
    assert slot_text(VOCABULARY, EOS) == END
    assert slot_text(VOCABULARY, MASK) == "⟨<mask>⟩"
    assert slot_text(VOCABULARY, SPECIAL) == "⟨<b>␛⟩"
    assert slot_text(VOCABULARY, PIECES.index(b"\xe2\x82")) == "\\xe2\\x82"
    assert slot_text(VOCABULARY, PIECES.index(b"\x1b[2J\x07")) == "␛[2J␇"
    assert visible("a\u202eb\x7f\x85") == "a\\u{202e}b␡\\u{85}"


_DOCUMENT = """
const told = [];
class Classes {
  constructor() { this.held = new Set(); }
  toggle(name, on) { if (on) this.held.add(name); else this.held.delete(name); }
}
class Element {
  constructor(dataset = {}, tagName = "SPAN") {
    Object.assign(this, {dataset, tagName, classList: new Classes(), attributes: {}, listeners: {}, textContent: ""});
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(kind, listener) { this.listeners[kind] = listener; }
}
const page = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const slots = page.at.map((at) => new Element({at: String(at)}));
const slider = new Element({}, "INPUT"), where = new Element();
const names = ["first", "back", "play", "next", "last"];
const buttons = Object.fromEntries(names.map((go) => [go, new Element({go}, "BUTTON")]));
const replay = new Element({forwards: page.forwards}, "SECTION");
replay.querySelectorAll = (what) => (what === ".slot" ? slots : Object.values(buttons));
replay.querySelector = (what) => ({input: slider, ".where": where, "[data-go=play]": buttons.play})[what];
global.document = {querySelectorAll: () => [replay]};
global.setInterval = (tick) => { global.tick = tick; return 1; };
global.clearInterval = () => { global.tick = null; };
const note = () => told.push({
  step: Number(slider.value), shown: slots.map((slot) => !slot.classList.held.has("hidden")),
  fresh: slots.map((slot) => slot.classList.held.has("new")),
  text: where.textContent, play: buttons.play.attributes["aria-label"] ?? "play",
});
const press = (key, target = replay) => {
  let prevented = false;
  replay.listeners.keydown({key, target, preventDefault: () => { prevented = true; }});
  return prevented;
};
eval(page.code);
note();
buttons.first.listeners.click(); note();
press("ArrowRight"); note();
press("End"); note();
press("Home"); note();
buttons.back.listeners.click(); note();
slider.value = "1"; slider.listeners.input(); note();
buttons.play.listeners.click(); note();
while (global.tick) global.tick();
note();
press(" "); note();
press(" "); note();
told.push(press("q"), press(" ", buttons.next), press("ArrowLeft", slider));
console.log(JSON.stringify(told));
"""


def test_the_script_shows_the_canvas_step_by_step() -> None:
    """Buttons, keys, slider and playback work, on a stub of the parts of a document that the script uses."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the page's script with")
    steps = [_snapshot([FREE] * 3, 0), _snapshot([FREE, 1, FREE], 1), _snapshot([2, 1, EOS], 2)]
    page = _Page(replay_page([Replay(steps, VOCABULARY, np.full(3, 0.5))]))
    at = [int(attributes["data-at"] or "") for attributes in page.slots()]
    assert at == [2, 1, 2]
    held = {"at": at, "forwards": "0,1,2", "code": page.code[1]}
    ran = subprocess.run([node, "-e", _DOCUMENT], input=json.dumps(held), capture_output=True, text=True, check=True)
    *told, other_key, space_on_a_button, arrow_on_the_slider = json.loads(ran.stdout)
    assert [each["step"] for each in told] == [2, 0, 1, 2, 0, 0, 1, 1, 2, 0, 0]
    for each in told:
        assert each["shown"] == [slot <= each["step"] for slot in at]
        assert each["fresh"] == [slot == each["step"] for slot in at]
    assert told[2]["text"] == "step 1 of 2: 1 of 3 slots filled after 1 forward pass"
    assert told[3]["text"] == "step 2 of 2: 3 of 3 slots filled after 2 forward passes"
    assert [each["play"] for each in told[6:]] == ["play", "pause", "play", "pause", "play"]
    assert (other_key, space_on_a_button, arrow_on_the_slider) == (False, False, True)
