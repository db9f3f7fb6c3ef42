"""The report of a constraint: what it adds to the front end's entries."""

from __future__ import annotations

import json

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import SpecialToken, literal, sequence

BYTES = [bytes([byte]) for byte in range(256)]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [True, False]}}, "additionalProperties": False, "x": 1}


def test_lengths_in_bytes_and_tokens() -> None:
    """The shortest string in tokens uses long tokens, the longest single bytes."""
    report = compile(regex("ab{3,4}"), Vocabulary([b"", b"abb", *BYTES], eos=[0])).report
    assert (report.shortest_bytes, report.shortest_tokens) == (4, 2)
    assert (report.longest_bytes.at_most, report.longest_tokens.at_most) == (5, 5)
    assert report.longest_tokens.is_exact


def test_special_tokens_count_as_one() -> None:
    """A special token is one token, and counts as one byte."""
    vocabulary = Vocabulary([b"", b"", *BYTES], eos=[0], special={1: "<x>"})
    report = compile(sequence("a", SpecialToken("<x>")), vocabulary).report
    assert (report.shortest_bytes, report.shortest_tokens) == (2, 2)
    assert (report.longest_bytes.at_most, report.longest_tokens.at_most) == (2, 2)


def test_sizes() -> None:
    """Nodes and terms belong to the grammar alone; states are those made so far."""
    vocabulary = Vocabulary([b"", *BYTES], eos=[0])
    constraint = compile(json_schema(SCHEMA), vocabulary)
    before = constraint.report
    compile(json_schema({"type": "array", "items": {"pattern": "^x{3,9}y"}}), vocabulary).matcher().accept_bytes(b"[")
    assert constraint.report == before
    text = b'{"a": true}'
    assert constraint.matcher().accept_bytes(text) == len(text)
    after = constraint.report
    assert after.states > before.states
    assert (after.grammar_nodes, after.terms) == (before.grammar_nodes, before.terms)
    assert compile(literal("a"), vocabulary).report.grammar_nodes == 1


def test_json_and_text_say_the_same() -> None:
    """Both forms have the entries with pointer and status, policies, annotations, lengths and sizes."""
    report = compile(json_schema(SCHEMA), Vocabulary([b"", *BYTES], eos=[0])).report
    values = json.loads(json.dumps(report.to_json()))
    text = str(report)
    assert [entry["where"] for entry in values["entries"]] == [entry.where for entry in report.entries]
    assert {entry["status"] for entry in values["entries"]} == {"enforced", "annotation"}
    assert {entry["where"] for entry in values["entries"] if entry["status"] == "annotation"} == {"#/x"}
    for entry in report.entries:
        assert f"  {entry.where}  {entry.keyword}" in text
    for name, value in values["policies"].items():
        assert f"  {name}: {value}" in text
    assert values["longest_bytes"] == {
        "status": "finite",
        "at_least": report.longest_bytes.at_most,
        "at_most": report.longest_bytes.at_most,
    }
    assert values["shortest_bytes"] == len("{}")
    assert f"{values['grammar_nodes']:,} grammar nodes, {values['terms']:,} terms, {values['states']:,} states" in text
