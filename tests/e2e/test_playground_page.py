"""The playground's page in Chromium: masks, places, links, the keyboard, colours, names, widths, hostile texts.

Built by ``make playground``; ``make playground-test`` builds it and runs these and ``test_playground.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from browser import BROWSER, Page, browser
from playground_cases import FEWEST, JUDGE, PAGE, cases, hostile

_ROOT: Final = Path(__file__).resolve().parents[2]
_CONTRAST: Final = _ROOT / "tests" / "support" / "pages" / "contrast.js"

pytestmark = [
    pytest.mark.playground,
    pytest.mark.exhaustive,
    pytest.mark.model,
    pytest.mark.skipif(not PAGE.exists(), reason=f"{PAGE} is not there; build it: make playground"),
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def _open(page: Page, fragment: str = "") -> None:
    page.call("Page.navigate", url="about:blank")
    page.size(1280, 900)
    page.open(PAGE.as_uri() + fragment)
    page.wait("document.querySelector('#place .big') || !document.getElementById('problem').hidden")


def _start_engine(page: Page) -> None:
    """Make an engine in the page itself, beside that of its worker."""
    worker = page.run("document.getElementById('worker').textContent").replace("onmessage =", "globalThis.unused =")
    judge = JUDGE.read_text("utf-8")
    kept = "Object.assign(globalThis, {createModule, Engine, unpacked, judge}); null;"
    page.run(f"{{ const module = undefined; {worker}\n{judge}\n{kept} }}")
    page.run(
        "(async () => { const [wasmBinary, tokens, texts] = await Promise.all(['module', 'vocabulary', 'library']"
        ".map((name) => unpacked(document.getElementById('data-' + name).textContent)));"
        "globalThis.own = new Engine(await createModule({wasmBinary}), tokens, texts); })()"
    )


def test_masks_are_those_of_the_native_engine(page: Page) -> None:
    _open(page)
    _start_engine(page)
    answer = page.run(f"judge(own, {json.dumps(cases())})")
    assert answer["faults"] == []
    assert answer["count"] >= FEWEST


def _write(page: Page, notation: str, source: str, text: str) -> None:
    """Write a grammar and a text, and wait for the answer."""
    page.run(f"choose({json.dumps(notation)}, {json.dumps(source)}, {json.dumps(text)}); changed()")
    page.wait(f"last && last.asked.source === $('source').value && last.asked.notation === {json.dumps(notation)}")


def test_the_page_tells_what_may_come_and_why_not(page: Page) -> None:
    _open(page, "#" + "regex=%28yes%7Cno%29%21&text=yea")
    assert "refused" in page.run("document.querySelector('.refusal').textContent")
    assert page.run("document.querySelectorAll('#tokens .refused').length") == 1
    page.run("choose('regex', '(yes|no)!', 'ye'); changed()")
    page.wait("last.asked.text === 'ye'")
    page.run("$('forced').click()")
    page.wait("last.asked.text === 'yes!'")
    assert "may end here" in page.run("$('place').textContent")
    assert page.run("location.hash").endswith("text=yes%21")


_SAMPLE: Final = (
    "a megabyte of properties",
    "product of patterns",
    "reference loop of choices",
    "lark: one huge alternation",
    "lark: ring of left recursion",
    "gbnf: chain of rules",
    "gbnf: deep parentheses",
    "pattern 0",
    "pattern 5",
    "pattern 6",
)


def test_the_page_goes_on_while_the_engine_works_on_hostile_texts(page: Page) -> None:
    texts = dict(hostile())
    _open(page)
    page.run("globalThis.frames = 0; (function count() { ++frames; setTimeout(count, 10); })()")
    for name in _SAMPLE:
        for notation in ("schema", "regex", "lark", "gbnf"):
            before = page.run("frames")
            _write(page, notation, texts[name], "ab" * 50_000)
            assert page.run("frames") > before
            said = page.run("$('problem').hidden ? $('place').textContent : $('problem').textContent")
            assert len(said) > 10, (name, notation)
            assert not page.run("$('problem').textContent.includes('The engine stopped')"), (name, notation)


def test_what_takes_long_is_stopped_and_the_next_change_begins_anew(page: Page) -> None:
    _open(page)
    page.run(f"choose('regex', {json.dumps('(.*a){14}[^a]{20}' * 3)}, 'ab'); changed()")
    stopped = "worker === null && $('stop').hidden && $('status').textContent.startsWith('stopped')"
    page.wait(f"waiting?.source === $('source').value && (stop(), {stopped})")
    _write(page, "regex", "a+", "aa")
    assert page.run("document.querySelectorAll('#tokens .free').length") > 0


def test_the_page_asks_no_host_and_works_offline(page: Page) -> None:
    page.call("Network.enable")
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.call("Network.emulateNetworkConditions", **offline)
    page.requests.clear()
    _open(page)
    names = page.run("performance.getEntriesByType('resource').map((one) => one.name)")
    asked = [name for name in [*names, *page.requests] if not name.startswith(("blob:", "data:", "file:", "about:"))]
    assert asked == []
    assert page.run("fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.run("document.querySelectorAll('#tokens .token').length") > 3
    page.call("Network.emulateNetworkConditions", **{**offline, "offline": False, "downloadThroughput": -1})
    page.call("Network.disable")


def test_a_newcomer_finds_an_example_and_others_a_click_away(page: Page) -> None:
    _open(page)
    assert page.run("$('source').value.length") > 50
    assert page.run("last.compiled.error") is None
    count = page.run("document.querySelectorAll('#examples button').length")
    assert count == page.run("EXAMPLES.length") >= 6
    for index in range(count):
        page.run(f"document.querySelectorAll('#examples button')[{index}].click()")
        page.wait("last.asked.source === $('source').value && last.asked.text === $('text').value")
        assert page.run("last.compiled.error ?? null") is None
        assert page.run("last.walked.taken === last.walked.ids.length"), index
    own = page.run("choose('regex', 'my own', 'my'); remember(); $('source').value")
    page.run("document.querySelectorAll('#examples button')[0].click(); history.back()")
    page.wait(f"$('source').value === {json.dumps(own)}")


def test_a_text_is_kept_for_each_notation(page: Page) -> None:
    _open(page)
    _write(page, "regex", "my own", "my")
    for notation, source in (("lark", None), ("regex", "my own")):
        page.run(f"$('notation').value = '{notation}'; $('notation').onchange()")
        page.wait(f"last.asked.notation === '{notation}'")
        assert source in (None, page.run("last.asked.source"))


_ODD: Final = "é 日本 🙂 &=#%+;?/\\ \n\t '\"<b>&amp;</b> \u2028 %41 +"


@pytest.mark.parametrize("notation", ["schema", "regex", "lark", "gbnf"])
def test_links_hold_odd_characters(page: Page, notation: str) -> None:
    _open(page)
    page.run(f"choose('{notation}', {json.dumps(_ODD)}, {json.dumps(_ODD + 'x')}); remember()")
    fragment = page.run("location.hash")
    _open(page, fragment)
    assert page.run("[$('notation').value, $('source').value, $('text').value]") == [notation, _ODD, _ODD + "x"]


def test_links_that_are_too_long_or_damaged_are_refused_politely(page: Page) -> None:
    _open(page)
    page.run("choose('regex', 'a'.repeat(LONGEST_LINK), ''); $('link').click()")
    assert "too long for a link" in page.run("$('status').textContent")
    _open(page)
    page.run("location.hash = '#regex=' + 'a'.repeat(LONGEST_LINK)")
    page.wait("!$('notice').hidden")
    assert "at most" in page.run("$('notice').textContent")
    assert page.run("location.hash.length") < 10_000
    for fragment in ("#program=%%%", "#program=AAAA", "#program=", "#regex=%E0%A4%A&text=%", "#nothing=1", "#&&==#"):
        _open(page, fragment)
        if "program" in fragment:
            assert "damaged" in page.run("$('problem').textContent"), fragment
        else:
            assert page.run("last.asked.source.length") > 0, fragment


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("text", ["ye", "yea", "yes!", "x"])
def test_colours_have_contrast(page: Page, text: str, is_dark: bool) -> None:
    _open(page, "#" + urlencode({"regex": "(yes|no|[0-9]{3})!", "text": text}))
    page.size(1280, 900, is_dark=is_dark)
    page.run("problem('the grammar is refused', {begin: 1, end: 3, kind: 'unread'}); $('notice').hidden = false")
    found = page.run(_CONTRAST.read_text("utf-8"))
    assert len(found) > 20
    assert [one for one in found if one[2] < one[3]] == []


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(page: Page, width: int) -> None:
    _open(page)
    page.size(width, 844)
    long = "x" * 300
    for notation, source, text in (
        ("schema", json.dumps({"enum": [long, long + "y"]}), '"' + long),
        ("regex", long + "(?=a)", long),
        ("lark", 'start: "' + long + '" x\n' + f"x: {long}\n{long}: /[0-9]+/", long),
        ("gbnf", "root ::= [a-z]+", "z" * 500),
    ):
        _write(page, notation, source, text)
        assert page.run("document.documentElement.scrollWidth") <= width, notation


def test_every_control_has_a_name_and_is_reached_by_tab(page: Page) -> None:
    _open(page)
    roles = {"button", "textbox", "combobox", "listbox", "option", "region", "group"}
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes if not one["ignored"]]
    assert {role for role, _ in named} >= {"button", "textbox", "combobox", "listbox", "option"}
    assert [one for one in named if one[0] in roles and not one[1].strip()] == []
    page.run("document.activeElement.blur()")
    reached = set()
    for _ in range(page.run("document.querySelectorAll('button, textarea, select, [tabindex]').length") + 2):
        page.key("Tab")
        reached.add(page.run("document.activeElement.id || document.activeElement.textContent"))
    assert reached >= {"notation", "source", "text", "tokens", "link", "forced", "shortest", "A person", "A chess game"}


def test_an_example_is_chosen_with_the_keyboard(page: Page) -> None:
    _open(page)
    page.run("document.querySelectorAll('#examples button')[3].focus()")
    page.key("Enter")
    page.wait("last.asked.notation === 'regex'")


def test_places_are_chosen_with_the_keyboard(page: Page) -> None:
    _open(page, "#regex=a%7Bb%7D%20c%20d%20e&text=a%7Bb%7D%20c%20d%20e")
    page.run("$('tokens').focus()")
    before = page.run("last.position")
    page.key("ArrowLeft")
    page.wait(f"last.position === {before - 1}")
    page.key("Home")
    page.wait("last.position === 0")
    assert page.run("document.querySelectorAll('#tokens [aria-selected=true]').length") == 1
