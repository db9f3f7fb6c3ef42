"""The playground: masks equal to the native engine's, in Node and in Chromium; and the page itself.

Built by ``make playground``; ``make playground-test`` builds it and runs these.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from browser import BROWSER, Page, browser
from click.testing import CliRunner
from hostile_grammars import texts as hostile_texts
from hostile_schemas import SCHEMAS
from playground_cases import cases, vocabulary, walk

import structgen as sg
from structgen.cli.main import cli
from structgen.models import embedded_folder

_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGE: Final = Path(os.environ.get("STRUCTGEN_PLAYGROUND", _ROOT / "build" / "playground")) / "index.html"
_JUDGE: Final = _ROOT / "tests" / "support" / "pages" / "playground_judge.js"
_NODE: Final = shutil.which("node")
_FEWEST: Final = 200

pytestmark = [
    pytest.mark.playground,
    pytest.mark.exhaustive,
    pytest.mark.model,
    pytest.mark.skipif(not _PAGE.exists(), reason=f"{_PAGE} is not there; build it: make playground"),
]
in_node = pytest.mark.skipif(_NODE is None, reason="there is no node")
in_chromium = pytest.mark.skipif(BROWSER is None, reason="there is no chromium")


@pytest.fixture(scope="module")
def judged() -> list[dict[str, Any]]:
    return cases()


def _node(what: str, given: Any) -> Any:
    assert _NODE is not None
    command = [_NODE, str(_JUDGE), str(_PAGE.parent / "parts"), str(_ROOT / "playground" / "page"), what]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def _open(page: Page, fragment: str = "") -> None:
    page.call("Page.navigate", url="about:blank")
    page.open(_PAGE.as_uri() + fragment)
    page.wait("document.querySelector('#place .big') || !document.getElementById('problem').hidden")


def _start_engine(page: Page) -> None:
    """Make an engine in the page itself, beside that of its worker."""
    worker = page.run("document.getElementById('worker').textContent").replace("onmessage =", "globalThis.unused =")
    judge = _JUDGE.read_text("utf-8")
    kept = "Object.assign(globalThis, {createModule, Engine, unpacked, judge}); null;"
    page.run(f"{{ const module = undefined; {worker}\n{judge}\n{kept} }}")
    page.run(
        "(async () => { const [wasmBinary, tokens, texts] = await Promise.all(['module', 'vocabulary', 'library']"
        ".map((name) => unpacked(document.getElementById('data-' + name).textContent)));"
        "globalThis.own = new Engine(await createModule({wasmBinary}), tokens, texts); })()"
    )


@in_node
def test_masks_are_those_of_the_native_engine_in_node(judged: list[dict[str, Any]]) -> None:
    answer = _node("judge", judged)
    assert answer["faults"] == []
    assert answer["count"] >= _FEWEST


@in_chromium
def test_masks_are_those_of_the_native_engine_in_chromium(page: Page, judged: list[dict[str, Any]]) -> None:
    _open(page)
    _start_engine(page)
    answer = page.run(f"judge(own, {json.dumps(judged)})")
    assert answer["faults"] == []
    assert answer["count"] >= _FEWEST


_ONLY_IN_LINKS: Final = {
    "multiples": {"type": "integer", "multipleOf": 7},
    "patterns of names": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    },
    "conditions": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "if": {"required": ["a"]},
        "then": {"maxProperties": 1},
    },
    "negations": {"type": "string", "not": {"pattern": "^a"}},
    "bounds of numbers": {"type": "number", "minimum": 2.5, "maximum": 7.25},
    "items that differ": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
}


@in_node
def test_links_hold_what_the_page_does_not_read(tmp_path: Path) -> None:
    tokens, given, fragments = vocabulary(), [], []
    sources = {f"{name}.json": json.dumps(schema) for name, schema in _ONLY_IN_LINKS.items()}
    sources |= {
        "lazy.lark": 'start: /<.*?>/ "," start | "."',
        "left.gbnf": 'root ::= root "a" | root "b" | "c"',
    }
    for number, (name, text) in enumerate(sources.items()):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        done = CliRunner().invoke(cli, ["playground", str(path)])
        assert done.exit_code == 0, done.output
        fragments.append(done.output.strip())
        assert f"&name={name.replace(' ', '+')}&" in fragments[-1]  # without the folder
        given.append({"notation": "program", "source": _program(fragments[-1]), **walk(sg.load(path), tokens, number)})
    assert _node("judge", given)["faults"] == []


def _program(fragment: str) -> list[int]:
    from base64 import urlsafe_b64decode
    from urllib.parse import parse_qs

    packed = parse_qs(fragment.lstrip("#"))["program"][0]
    return list(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


_REFUSED: Final = [
    (
        "schema",
        '{"type": "object",\n "properties": {"a": {"type": "integer", "multipleOf": 3}}}',
        '"multipleOf": 3',
        "multipleOf",
    ),
    ("schema", '{"type": "string",}', "}", "no JSON"),
    ("schema", '{"type": "string", "not": {"const": "a"}}', '"not": {"const": "a"}', "not"),
    ("schema", '{"type": "string", "pattern": "(?!a)b"}', '"pattern": "(?!a)b"', "look-around"),
    ("schema", '{"type": "number", "minimum": 3.25}', '"minimum": 3.25', "bounds of a number"),
    ("regex", "é(?=x)", "(?=", "look-around"),
    ("regex", "a\\bb", "\\b", "word boundary"),
    ("regex", "(a)\\1", "\\1", "back-reference"),
    ("regex", "a++", "++", "possessive"),
    ("regex", "a**", "*", "quantifier follows"),
    ("regex", "(a", "(", "unclosed group"),
    ("regex", "[b-a]", "b-a", "backwards"),
    ("lark", 'start: "a" x\nx: /a.*?b/\n', "/a.*?b/", "lazy"),
    ("lark", 'start: "a"\n!!bad\n', "!!bad", "statement"),
    ("gbnf", 'root ::= "a" <think>', "<", "token"),
    ("gbnf", 'root ::= "é" other', "other", "no rule is called"),
    ("gbnf", "root ::= [z-a]", "z-a", "reversed"),
    ("gbnf", 'root ::= ("a"', "(", "not closed"),
]


@in_node
def test_what_is_not_read_is_refused_with_its_place() -> None:
    answers = _node("compile", [[notation, text] for notation, text, _, _ in _REFUSED])
    for (notation, text, place, word), answer in zip(_REFUSED, answers, strict=True):
        assert word in answer["error"], (notation, text, answer)
        assert text[answer["begin"] : answer["end"]] == place, (notation, text, answer)


@in_node
def test_texts_are_cut_as_the_tokenizer_of_the_model_cuts_them() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    texts = [
        "Hello, world! It's 2024-11-05 and we'll see.",
        "  two  spaces\n\n\tand tabs ",
        '{"name": "Ada", "age": 36}',
        "日本語 text é ñ, x = 12345.678e-9; 🙂",
        "    indented\n        code()\n\r\n\r\n",
        "CamelCaseWords andSNAKE_case 1  2   3",
        "a" * 300,
    ]
    model = tokenizers.Tokenizer.from_file(str(Path(embedded_folder()) / "tokenizer.json"))
    assert _node("tokenize", texts) == [model.encode(text, add_special_tokens=False).ids for text in texts]


def _hostile() -> list[list[str]]:
    given = [[name, "schema", json.dumps(make())] for name, make in SCHEMAS.items()]
    for notation in ("lark", "gbnf"):
        given += [[name, notation, text] for name, text in hostile_texts(notation).items()]
    patterns = (
        "(" * 100_000,
        "(a*)*" * 50 + "b",
        "a{1000000000}{1000000000}",
        "(?:a?){500}a{500}",
        "[" + "a-z" * 50_000 + "]",
        "a" * 1_000_000,
        "(a|b|ab)*c" * 200,
        "(.*a){40}",
        "((((a{9}){9}){9}){9}){9}",
    )
    return given + [[f"pattern {number}", "regex", text] for number, text in enumerate(patterns)]


@in_node
def test_hostile_texts_end_in_a_result_or_an_error() -> None:
    for answer in _node("survive", _hostile()):
        assert answer["kind"] in ("", "unread", "source", "limit"), answer
        assert answer["kind"] != "failed", answer


@in_chromium
def test_the_page_goes_on_while_the_engine_works(page: Page) -> None:
    for text in ("(.*a){14}[^a]{20}", "(a|b|ab)*c" * 200, "(" * 20_000):
        _open(page)
        page.run(f"choose('regex', {json.dumps(text)}, 'ab'); changed()")
        page.wait("last && last.asked.source === $('source').value")
        assert page.run(
            "document.getElementById('problem').hidden || document.getElementById('problem').textContent.length > 10"
        )
    _open(page)
    page.run("stop(); choose('regex', 'a+', 'aa'); changed()")
    page.wait("last.asked.source === 'a+' && document.querySelectorAll('#tokens .free').length > 0")


@in_chromium
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


@in_chromium
def test_the_page_asks_no_host(page: Page) -> None:
    _open(page)
    names = page.run("performance.getEntriesByType('resource').map((one) => one.name)")
    assert [name for name in names if not name.startswith(("blob:", "data:"))] == []
    assert page.run("fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"


@in_chromium
def test_places_are_chosen_with_the_keyboard(page: Page) -> None:
    _open(page, "#regex=a%7Bb%7D%20c%20d%20e&text=a%7Bb%7D%20c%20d%20e")
    page.run("$('tokens').focus()")
    before = page.run("last.position")
    page.key("ArrowLeft")
    page.wait(f"last.position === {before - 1}")
    page.key("Home")
    page.wait("last.position === 0")
    assert page.run("document.querySelectorAll('#tokens [aria-selected=true]').length") == 1
