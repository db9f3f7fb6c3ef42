"""Inputs that once exposed a fault, of structgen or of another engine: each is replayed for ever."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from grammar_library import random_split, split_vocabulary, tokens_read

import structgen as sg
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.errors import StructgenError
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.nodes import Grammar
from structgen.testing import ReferenceMatcher

Case = dict[str, Any]

FILE: Final = Path(__file__).resolve().parents[1] / "fixtures/regressions.toml"
CASES: Final[list[Case]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["case"]
FRONT_ENDS: Final = {"regex": sg.regex, "json_schema": sg.json_schema, "lark": sg.lark, "gbnf": sg.gbnf}
ANSWERED: Final = [case for case in CASES if "refused" not in case]


def _grammar(case: Case) -> Grammar:
    options = dict(case.get("options", {}))
    if case["kind"] == "json_schema":
        options["policy"] = JsonPolicy(
            **{"whitespace": "flexible", "additional": "written", **options.get("policy", {})}
        )
    return FRONT_ENDS[case["kind"]](case["source"], **options)  # type: ignore[operator]


def _compile(case: Case) -> sg.Constraint:
    grammar = _grammar(case)
    return sg.compile(grammar, byte_vocabulary(grammar))


def _texts(case: Case) -> Iterator[tuple[bytes, int | None]]:
    """Texts with the number of bytes that can be read; None for those that are accepted."""
    for text in case["accept"]:
        yield text.encode(), None
    for text, offset in case["reject"]:
        yield text.encode(), offset


def _name(case: Case) -> str:
    return str(case["what"])


def test_each_case_is_of_its_own() -> None:
    """Each has a sentence of its own, and strings to judge or words of an error."""
    assert len({case["what"] for case in CASES}) == len(CASES) >= 50
    assert all(case["kind"] in FRONT_ENDS for case in CASES)
    assert all(case["accept"] and case["reject"] for case in ANSWERED)


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in case], ids=_name)
def test_source_is_refused(case: Case) -> None:
    """The error still names the reason."""
    with pytest.raises(StructgenError) as raised:
        _compile(case)
    assert case["refused"] in str(raised.value)


@pytest.mark.parametrize("case", ANSWERED, ids=_name)
def test_engine(case: Case) -> None:
    """The verdicts are right byte by byte, and for texts that are cut into tokens at random."""
    rng = random.Random(case["what"])
    texts = list(_texts(case))
    cuts = {data: [random_split(rng, data) for _ in range(2)] for data, _ in texts}
    vocabulary = split_vocabulary({piece for several in cuts.values() for cut in several for piece in cut})
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    constraint = sg.compile(_grammar(case), vocabulary)
    for data, offset in texts:
        for cut in ([bytes([byte]) for byte in data], *cuts[data]):
            matcher = constraint.matcher()
            count = tokens_read(matcher, cut, ids)
            before = sum(map(len, cut[:count]))
            if offset is None or offset == len(data):
                assert before == len(data), (data, cut)
                assert matcher.is_accepting == (offset is None), (data, cut)
            else:
                assert before <= offset < before + len(cut[count]), (data, cut)


@pytest.mark.parametrize("case", [case for case in ANSWERED if case.get("reference", True)], ids=_name)
def test_reference(case: Case) -> None:
    """The reference implementation gives the same verdicts."""
    blank = ReferenceMatcher(_grammar(case))
    for data, offset in _texts(case):
        matcher = blank.fork()
        assert matcher.accept_bytes(data) == (len(data) if offset is None else offset), data
        assert (offset is None) or offset < len(data) or not matcher.is_accepting, data
        assert offset is not None or matcher.is_accepting, data
