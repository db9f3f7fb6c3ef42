"""Grammars in the notations of other engines accept the same strings in those engines."""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from peer_engines import Engine, LarkEarley, Llguidance, Xgrammar
from schema_as_written import as_written as json_schema

from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.convert import Dialect, write
from structgen.frontends.lark import load
from structgen.frontends.regex import regex
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar, Reference, Rules, literal
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR, language, recursive, small_terms

ENGINES: dict[Dialect, type[Engine]] = {
    "gbnf": Xgrammar,
    "ebnf": Xgrammar,
    "lark": LarkEarley,
    "llguidance": Llguidance,
}
LIBRARY = sorted(path.parent for path in (Path(__file__).resolve().parents[2] / "grammars").glob("*/grammar.lark"))
SHORT = 60
"""Characters of a text that Lark is asked about: its parser takes cubic time."""
FOR_LARK = ("arithmetic", "chess", "cpp", "csv", "graphql", "json", "json_lines", "regex", "semver", "smiles", "uuid")
"""What its parser reads fast: terminals that have few divisions."""


@pytest.fixture(scope="module", params=list(ENGINES))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


@pytest.fixture(scope="module")
def engine(dialect: Dialect) -> Engine:
    return ENGINES[dialect]()


def assert_same(term: Grammar, dialect: Dialect, engine: Engine, words: list[str], expected: set[str]) -> None:
    try:
        text = write(term, dialect).text
    except UnsatisfiableGrammar:
        assert not expected
        return
    assert engine.members(text, words) == expected, (str(term), text)


def compare(term: Grammar, dialect: Dialect, engine: Engine, longest: int = 4) -> None:
    words = ["".join(word) for length in range(longest + 1) for word in product("ab", repeat=length)]
    expected = {word.decode() for word in language(term, longest, b"ab")}
    assert_same(term, dialect, engine, words, expected)


def test_small_terms(dialect: Dialect, engine: Engine) -> None:
    for term in small_terms(3, [literal("a"), literal("ab"), ir.ByteClass([(97, 98)])], REGULAR + BOOLEAN):
        compare(term, dialect, engine)
    for term in small_terms(3, [literal("a"), literal("b"), ITSELF]):
        compare(recursive(term), dialect, engine)


@pytest.mark.nightly
def test_more_small_terms(dialect: Dialect, engine: Engine) -> None:
    for term in small_terms(5, [literal("a"), literal("ab")], REGULAR + BOOLEAN):
        compare(term, dialect, engine)
    for term in small_terms(5, [literal("a"), literal("b"), ITSELF]):
        compare(recursive(term), dialect, engine)


TERMS = [
    ir.Permutation([literal("a")], [literal("b"), literal("ab")], literal("bb"), literal("a"), 1, 4),
    ir.Permutation([literal("a"), literal("b")], (), literal("a"), None, 2, None),
    ir.Budget(regex("(ab)*"), characters=3),
    regex("a*") + regex("a*b"),
    (literal("a") | "ab") + (literal("b") | "ab"),
    Rules({"s": ir.Sequence((Reference("s"), literal("a"))) | "b" | ""}, Reference("s")),
    ~regex(".*ab") & regex("[ab]{2,}"),
    Rules({"w": regex("a|b")}, ir.Sequence((Reference("w"), ~(Reference("w") + "a")))),
]


@pytest.mark.parametrize("term", TERMS, ids=range(len(TERMS)))
def test_other_operators(dialect: Dialect, engine: Engine, term: Grammar) -> None:
    compare(term, dialect, engine, longest=6)


def test_characters(dialect: Dialect, engine: Engine) -> None:
    words = [chr(code) for code in (*range(1, 0x180), 0x2028, 0xFFFD, 0x1F600, 0x10FFFF)]
    special = "".join(words[:0x90])
    for ranges in [
        [(1, 8)],
        [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)],
        [(0x2A, 0x2F), (0x5B, 0x60)],
        [(0, 0x10FFFF)],
    ]:
        expected = {word for word in words if any(low <= ord(word) <= high for low, high in ranges)}
        assert_same(ir.CharClass(ranges), dialect, engine, words, expected)
    for word in (*special[::5], special, '"\\', "é1", "\x011"):
        assert_same(literal(word), dialect, engine, [word, word[:-1], word + "a"], {word})


def test_json_schemas(dialect: Dialect, engine: Engine) -> None:
    if dialect == "lark":
        pytest.skip("Lark takes minutes: bounded white space has many divisions")
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^a+$"},
            "b": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    members = ['{"a":"a"}', '{"a": "aa", "b": []}', '{"a":"\\u0061","b":[1,-20]}']
    others = ['{"a":"b"}', '{"b":[]}', '{"a":"a","b":[01]}', '{"a":"\\u0062"}', '{"a":"a","c":1}']
    assert_same(json_schema(schema), dialect, engine, members + others, set(members))


def cases_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "cases.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", LIBRARY, ids=lambda folder: folder.name)
def test_the_library(dialect: Dialect, engine: Engine, folder: Path) -> None:
    """Each grammar is compared on the cases that were written for it."""
    cases = cases_of(folder)
    if cases.keys() & {"lexer", "indentation"}:
        pytest.skip("it is read with options of Lark that change its texts")
    accepted, rejected = cases["accept"], [text for text, _ in cases["reject"]]
    if dialect == "lark":
        if folder.name not in FOR_LARK:
            pytest.skip("Lark takes seconds for a text: its terminals have many divisions")
        accepted, rejected = ([text for text in texts if len(text) <= SHORT][:3] for texts in (accepted, rejected))
    term = load(folder / "grammar.lark", start=cases.get("start", "start"))
    assert_same(term, dialect, engine, accepted + rejected, set(accepted))
