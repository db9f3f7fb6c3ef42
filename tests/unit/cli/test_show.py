"""The drawing of an automaton, and its page in a real browser and in Node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from structgen.cli.automaton_drawing import drawing_of, page_of
from structgen.cli.main import cli
from structgen.engine import compile
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.errors import LimitExceeded
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar, SpecialToken, choice
from structgen.grammar.reader import parse
from structgen.testing import ReferenceMatcher

GRAMMARS = {
    "regex": regex("(ab|ba)*c?"),
    "nested": parse('rules { s = "(" s ")" | "x" } in s'),
    "ambiguous": parse('rules { s = s s | "a" | "b" } in s'),
    "hidden": parse('rules { s = n s "x" | "y"; n = "a" | "" } in s'),
    "nullable": parse('rules { s = t t; t = "a" s "b" | "" } in s "."'),
    "indirect": parse('rules { s = t "a" | "b"; t = s "b" | "a" } in s'),
    "characters": regex("[é-ï☃😀]+x?"),
}
NODE, BROWSER = shutil.which("node"), shutil.which("chromium") or shutil.which("google-chrome")


def page(grammar: Grammar, text: str = "", title: str = "a grammar") -> str:
    return page_of(drawing_of(compile(grammar, byte_vocabulary(grammar))), title=title, text=text)


def verifications(grammar: Grammar, texts: list[str]) -> list[tuple[int, bool]]:
    """How many characters the reference implementation accepts, and whether it accepts the text."""
    found = []
    for text in texts:
        matcher = ReferenceMatcher(grammar)
        data = text.encode()
        taken = matcher.accept_bytes(data)
        whole = len(data[:taken].decode("utf-8", "ignore"))
        found.append((whole, taken == len(data) and matcher.is_accepting))
    return found


def words(alphabet: str, most: int) -> list[str]:
    return ["".join(word) for length in range(most + 1) for word in product(alphabet, repeat=length)]


@pytest.mark.skipif(NODE is None, reason="needs node")
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_script_reads_as_the_reference_does(name: str, tmp_path: Path) -> None:
    grammar = GRAMMARS[name]
    alphabet = {"nested": "(x)", "hidden": "axy", "nullable": "ab.", "characters": "éx☃a"}.get(name, "abc")
    texts = words(alphabet, 5)
    html = page(grammar)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    (script,) = re.findall(r"<script>\n(.*?)</script>", html, re.DOTALL)
    program = tmp_path / "page.js"
    program.write_text(
        f"{script}\nconst network = new Network({data});\n"
        f"console.log(JSON.stringify({json.dumps(texts)}.map(text => {{ const all = network.positions(text);"
        " return [all.length - 1, all.length > [...text].length && all[all.length - 1].accepting]; })));"
    )
    assert NODE is not None
    done = subprocess.run([NODE, str(program)], capture_output=True, text=True, check=True)
    assert [tuple(each) for each in json.loads(done.stdout)] == verifications(grammar, texts)


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_browser_steps_through_a_text(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(GRAMMARS["nested"], title="<nested>"), "utf-8")

    def told(text: str) -> tuple[str, str, set[int]]:
        assert BROWSER is not None
        address = f"file://{file}#text={quote(text)}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
        dom = subprocess.run(
            [BROWSER, *options, address], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        (verification,) = re.findall(r'<dd id="verdict">(.*?)</dd>', dom)
        (rules,) = re.findall(r'<dd id="rules">(.*?)</dd>', dom)
        return verification, rules, set(map(int, re.findall(r'class="state live" data-state="(\d+)"', dom)))

    verification, rules, live = told("((x)")
    assert (verification, live != set()) == ("may go on, and not end here", True)
    assert rules.startswith("(text) &gt; s")
    assert told("((x))")[0] == "is a member"
    assert told("(x))")[0] == "invalid at character 3"


def test_drawings() -> None:
    drawing = drawing_of(compile(GRAMMARS["nested"], byte_vocabulary(GRAMMARS["nested"])))
    assert [rule.name for rule in drawing.rules] == ["(text)", "s"]
    assert "call s" in str(drawing)
    for rule in drawing.rules:
        assert rule.start in rule.places
        assert len(set(rule.places.values())) == len(rule.places)  # no two states in the same place


def test_strokes_are_fewer_and_say_the_same() -> None:
    (rule,) = drawing_of(compile(regex('"(hello|[^"]x)"'), byte_vocabulary(regex("x")))).rules
    labels = {stroke.label for stroke in rule.strokes}
    assert any("ello" in label for label in labels)
    assert "beyond ASCII" in labels
    inner = {state for stroke in rule.strokes for state in stroke.inner}
    ends = {state for stroke in rule.strokes for state in (stroke.source, stroke.target)}
    assert inner.isdisjoint(ends)
    assert inner | ends == {state for edge in rule.edges for state in (edge.source, edge.target)}


def test_special_tokens_and_hostile_texts() -> None:
    grammar = choice("</script><b>", SpecialToken("<|x|>"))
    html = page(grammar, text="</script>", title="</title><i>{{data}}")
    assert html.count("</script>") == 2
    assert "<i>" not in html
    assert "token <|x|>" in str(drawing_of(compile(grammar, byte_vocabulary(grammar))))


def test_too_large() -> None:
    with pytest.raises(LimitExceeded, match="more than most_states=50"):
        drawing_of(compile(regex("(a|b){100}"), byte_vocabulary(regex("a"))), most_states=50)


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = CliRunner().invoke(cli, ["show", "--regex", "a|b", "--html", "-o", str(out)], standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 0)
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    listed = CliRunner().invoke(cli, ["show", "--regex", "a|b"], standalone_mode=False)
    assert listed.output.startswith("(text): 2 states, from 0")
