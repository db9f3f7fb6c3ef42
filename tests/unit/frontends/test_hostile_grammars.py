"""Malformed and oversized grammars end with a result or an error with a place.

The texts are in ``hostile_grammars``; library grammars are changed at random here.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hostile_grammars import ADDRESS_SPACE, NOTATIONS, read

import structgen as sg
from structgen.errors import GrammarSyntaxError, LimitExceeded, StructgenError, UnsupportedFeature
from structgen.frontends.convert import write

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "limits" / "hostile_grammars.py"
LIBRARY = Path(__file__).resolve().parents[3] / "grammars"
SECONDS = 2.0
HEAVY_SECONDS = 8.0  # for a megabyte, or fifty thousand rules
PLACELESS = (
    "there is no rule called",
    "it matches no string",
    "lexer divides no string",
    "no string has",
    "indentation cannot be combined with the contextual lexer",
    "a JSON Schema has no",
    "there is no special token",
    "the tokens can spell no string",
)
"""What is said of a whole grammar and has no place."""
PLACES = {
    ("lark", "undefined rule"): "lark grammar 1:12: ",
    ("lark", "duplicate rule"): "lark grammar 3:1: ",
    ("lark", "undefined in an unused rule"): "lark grammar 2:4: ",
    ("lark", "reversed range"): "lark grammar 1:13: ",
    ("lark", "recursive terminal"): "lark grammar 3:4: ",
    ("lark", "unknown directive"): "lark grammar 1:1: ",
    ("lark", "deep open parentheses"): "lark grammar: more than nesting=2000",
    ("lark", "template for ever"): "lark grammar: more than grammar_nodes=500000",
    ("gbnf", "undefined rule"): "gbnf grammar 1:14: ",
    ("gbnf", "duplicate rule"): "gbnf grammar 3:1: ",
    ("gbnf", "string that is not closed"): "gbnf grammar 1:10: ",
    ("gbnf", "bad escape"): "gbnf grammar 1:11: ",
    ("gbnf", "reversed range"): "gbnf grammar 1:11: ",
    ("gbnf", "reversed count"): "gbnf grammar 1:13: ",
    ("gbnf", "lone surrogate"): "gbnf grammar 1:12: ",
    ("gbnf", "deep parentheses"): "gbnf grammar 1:",
    ("ebnf", "lazy over rules"): "ebnf grammar 1:1: 'lazy' needs a rule without recursion",
    ("ebnf", "bad regexp"): "ebnf grammar 1:16: ",
    ("contextual", "ignored empty text"): "lark grammar 2:9: ",
    ("contextual", "chain of terminals"): "lark grammar: more than grammar_nodes=500000",
    ("contextual", "terminals that double"): "lark grammar 49:1: more than grammar_nodes=500000",
    ("contextual", "empty left recursion"): "lark grammar 2:5: Lark's LALR parser refuses the grammar",
}
"""How the errors of some of them begin."""


def outcomes(*arguments: str) -> list[dict[str, Any]]:
    """The results for the grammars of the given names."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=3_600,
        env={**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: dict[str, Any], seconds: float) -> None:
    """Check that nothing crashed, each error has a place or a limit, and everything was fast."""
    name = f"{found['notation']}/{found['name']}"
    assert "read" in found["stages"], name
    for stage, came in found["stages"].items():
        assert "crash" not in came, f"{name} {stage}: {came}"
        assert came["seconds"] <= seconds * found["slowness"], f"{name} {stage}: {came}"
        if "error" in came and came["limit"] is not None:
            assert f"{came['limit']}=" in came["message"], f"{name} {stage}: {came}"
        elif came.get("error") == "GrammarSyntaxError":
            start, end = came["span"]
            assert 0 <= start <= end <= came["size"], f"{name} {stage}: {came}"
        elif stage == "read" and "error" in came:
            placed = re.match(r"\w+ grammar (?:\S+:)?\d+:\d+: ", came["message"])
            assert placed or any(part in came["message"] for part in PLACELESS), f"{name} {stage}: {came}"
    assert found["peak_bytes"] <= ADDRESS_SPACE, name
    message = found["stages"]["read"].get("message", "")
    assert message.startswith(PLACES.get((found["notation"], found["name"]), "")), f"{name}: {message}"


WITHOUT_SANITIZER = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer maps more than the bound on memory"
)


@WITHOUT_SANITIZER
@pytest.mark.parametrize(  # the two dialects of BNF have one reader
    "notation", [pytest.param(each, marks=pytest.mark.nightly if each == "ebnf" else ()) for each in NOTATIONS]
)
def test_hostile_grammars_end_soon(notation: str) -> None:
    """Reading, compiling, masks and a token are fast."""
    found = outcomes(f"{notation}/*light")
    assert len(found) > 50
    for each in found:
        check(each, SECONDS)


@WITHOUT_SANITIZER
@pytest.mark.nightly
@pytest.mark.parametrize("notation", NOTATIONS)
def test_large_hostile_grammars_end_soon(notation: str) -> None:
    """The same holds for texts of a megabyte and for fifty thousand rules."""
    for each in outcomes(f"{notation}/*heavy"):
        check(each, HEAVY_SECONDS)


@WITHOUT_SANITIZER
@pytest.mark.parametrize("name", ["deep alternatives", "no text at all in two rules"])
def test_tools_on_hostile_grammars(name: str) -> None:
    """Report, explanations, drawing, lints, samples, inclusion, printing and all dialects are fast."""
    (found,) = outcomes(f"lark/{name}", "--tools")
    assert len(found["stages"]) > 8 or "error" in found["stages"]["compile"]
    check(found, SECONDS)


@WITHOUT_SANITIZER
@pytest.mark.nightly
@pytest.mark.parametrize("notation", NOTATIONS)
def test_tools_on_all_hostile_grammars(notation: str) -> None:
    """The same holds for all except those of a megabyte."""
    for each in outcomes(f"{notation}/*light", "--tools"):
        check(each, HEAVY_SECONDS)


def test_imports_in_a_circle(tmp_path: Path) -> None:
    """Two files may import from each other, but a name not from itself."""
    (tmp_path / "a.lark").write_text('%import .b.x\n%import .b.z\nstart: x z\ny: "y"\n', encoding="utf-8")
    (tmp_path / "b.lark").write_text('%import .a.y\n%import .a.z\nx: "x" y\n', encoding="utf-8")
    with pytest.raises(GrammarSyntaxError, match=r"\d+:\d+: 'z' is imported in a circle"):
        sg.load(tmp_path / "a.lark")
    (tmp_path / "b.lark").write_text('%import .a.y\nx: "x" y\nz: "z"\n', encoding="utf-8")
    assert sg.load(tmp_path / "a.lark") is not None


def test_imports_through_many_files(tmp_path: Path) -> None:
    """A chain of two thousand files is read without recursion."""
    for i in range(2_000):
        (tmp_path / f"f{i}.lark").write_text(f"%import .f{i + 1}.x\nstart: x\n", encoding="utf-8")
    (tmp_path / "f2000.lark").write_text('x: "a"\n', encoding="utf-8")
    assert str(sg.load(tmp_path / "f0.lark")).count("=") >= 1


@cache
def originals(notation: str) -> tuple[str, ...]:
    """The grammars of the library in a notation."""
    found = []
    for path in sorted(LIBRARY.glob("*/grammar.lark")):
        text = path.read_text(encoding="utf-8")
        if len(text) > 5_000:
            continue
        if notation in ("gbnf", "ebnf"):
            try:
                text = write(sg.lark(text, path=path), notation).text  # type: ignore[arg-type]  # one of the two
            except StructgenError:
                continue
        found.append(text)
    return tuple(found)


MARKS = b'()[]{}|*+?~&:.,-<>@%"/\\ \n\t#^$=!_aAzZ019\x00\xff\xc3\xa9\xed\xa0\x80'


def changed(text: str, chance: random.Random) -> str:
    """The text with a few bytes removed, inserted, moved or flipped; invalid UTF-8 becomes lone surrogates."""
    data = bytearray(text.encode())
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice([1, 1, 2, 5, 20]))
        match chance.randrange(6):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = bytes([chance.choice(MARKS)])
            case 2:
                data[start:start] = data[start:end] * chance.choice([1, 2, 30])
            case 3:
                data[start:end] = bytes(value ^ 1 << chance.randrange(8) for value in data[start:end])
            case 4:
                other = chance.randrange(len(data) + 1)
                data[start:start] = data[other : other + chance.choice([1, 3, 10, 40])]
            case _:
                data[start:end] = bytes([chance.choice(MARKS)])
    return bytes(data).decode("utf-8", chance.choice(["surrogateescape", "replace"]))


def fuzz(notation: str, count: int, seed: int) -> None:
    """Read changed grammars: only this package's errors occur, with a place where the text is wrong."""
    chance = random.Random(seed)
    accepted = refused = 0
    for _ in range(count):
        text = changed(chance.choice(originals(notation)), chance)
        try:
            read(notation, text)
            accepted += 1
        except GrammarSyntaxError as error:
            refused += 1
            start, end = error.span
            assert 0 <= start <= end <= len(error.text), text  # noqa: PT017  # most of them raise nothing
            assert re.match(r"\w+ grammar (?:\S+:)?\d+:\d+: ", str(error)), text  # noqa: PT017
        except UnsupportedFeature as error:
            assert error.where, text  # noqa: PT017
        except LimitExceeded as error:
            assert error.limit, text  # noqa: PT017
        except StructgenError as error:
            assert any(part in str(error) for part in PLACELESS), (str(error), text)  # noqa: PT017
    assert accepted > count // 20
    assert refused > count // 4


@pytest.mark.parametrize(("notation", "count"), [("lark", 300), ("gbnf", 300), ("ebnf", 300), ("contextual", 40)])
def test_changed_grammars_are_read_or_refused_with_a_place(notation: str, count: int) -> None:
    """This holds for a few hundred of them."""
    fuzz(notation, count, 1)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("notation", "count"), [("lark", 10_000), ("gbnf", 10_000), ("ebnf", 10_000), ("contextual", 1_000)]
)
def test_many_changed_grammars_are_read_or_refused_with_a_place(notation: str, count: int) -> None:
    """This holds for ten thousand of them."""
    fuzz(notation, count, 2)
