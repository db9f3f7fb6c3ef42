"""Rules, places and examples in the output of ``structgen explain``."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from structgen.cli.main import cli
from structgen.engine import compile
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.analysis.explanation import prefixes_before
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar
from structgen.testing import ReferenceMatcher

PAIRS = """start: pair ("," pair)*
pair: NAME "=" (INT | list)
list: "[" pair* "]"
NAME: /[a-z]+/
INT: /[0-9]+/
%ignore " "
"""


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str) -> dict[str, Any]:
        file = tmp_path / "pairs.lark"
        file.write_text(PAIRS)
        result = CliRunner().invoke(cli, ["explain", str(file), "--json", *arguments], standalone_mode=False)
        assert result.exception is None, result.output
        answer: dict[str, Any] = json.loads(result.output)
        return answer

    return run


def test_rules_have_places(told: Callable[..., dict[str, Any]]) -> None:
    answer = told("--text", "a=")
    assert answer["rules"] == ["start (1:1)", "pair (2:1)"]
    assert {each["text"]: each["rule"] for each in answer["alternatives"]}["'0'..'9'"] == "INT (5:1)"


def test_examples_are_continuations(told: Callable[..., dict[str, Any]]) -> None:
    for text in ("", "a", "a=[b=1", "a=1"):
        answer = told("--text", text)
        assert len(answer["alternatives"]) > 1
        for each in answer["alternatives"]:
            reference = ReferenceMatcher(lark(PAIRS))
            data = (text + each["example"]).encode()
            assert reference.accept_bytes(data) == len(data)
            assert reference.is_accepting


def test_where_a_refused_token_may_come(told: Callable[..., dict[str, Any]]) -> None:
    refused = told("--text", "a=", "--token", "]")["token"]
    assert not refused["allowed"]
    assert refused["after"] == [{"text": "[", "rule": "pair (2:1)"}]
    assert told("--text", "a=", "--token", "==")["token"]["after"] == []


@pytest.mark.parametrize(
    ("grammar", "text", "wanted"),
    [
        (regex("(ab|ba)*c"), "a", "c"),
        (regex("(ab|ba)*c"), "a", "ac"),
        (regex("a{3}b|b{4}a"), "", "ba"),
        (lark('start: "(" start ")" | "x"'), "((", "))"),
        (lark('start: "a" start "b" | "ab"'), "a", "bb"),
        (regex("a*"), "", "b"),
    ],
    ids=["loop", "inside", "two", "nested", "counted", "never"],
)
def test_the_nearest_place_is_the_nearest(grammar: Grammar, text: str, wanted: str) -> None:
    """It agrees with the reference implementation on all texts up to a length."""

    def reads(data: str) -> bool:
        return ReferenceMatcher(grammar).accept_bytes(data.encode()) == len(data)

    lengths = [
        length
        for length in range(1, 5)
        if any(reads(text + "".join(before) + wanted) for before in product("abc()x", repeat=length))
    ]
    matcher = compile(grammar, byte_vocabulary(grammar)).alone().matcher()
    assert matcher.accept_bytes(text.encode()) == len(text)
    found = [before for before, _ in prefixes_before(matcher, wanted.encode(), max_steps=2_000)]
    assert (len(found[0]) if found else None) == (lengths[0] if lengths else None)
    assert all(reads(text + before.decode() + wanted) for before in found)
