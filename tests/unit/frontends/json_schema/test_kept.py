"""Grammars on disk: a stored grammar equals the planned one, or it is planned again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from structgen_kernels import _native

from structgen.cache import keep
from structgen.engine import Vocabulary, compile
from structgen.errors import StructgenError
from structgen.frontends.json_schema import forget_known, json_schema, translation as kept
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Intersection, SpecialToken, literal
from structgen.grammar.nodes.description import Described

BYTES = Vocabulary([bytes([byte]) for byte in range(256)], eos=())
NODES = Limits().grammar_nodes
SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zé]+$", "not": {"const": "no"}},
        "next": {"$ref": "#"},
        "list": {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "contains": {"const": 2}},
    },
    "patternProperties": {"^x-": {"type": ["number", "null"]}},
    "minProperties": 1,
    "additionalProperties": False,
}
TEXT = json.dumps(SCHEMA)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that stores everything."""
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "WORTH_KEEPING_S", 0)
    forget_known()
    return tmp_path


def again(schema: object = TEXT, **options: Any) -> Described:
    """The grammar of a schema in a new process."""
    forget_known()
    grammar = json_schema(schema, keep=True, **options)
    assert isinstance(grammar, Described)
    return grammar


def is_read(grammar: Described) -> bool:
    """Whether a grammar was read from the disk."""
    return isinstance(grammar.plain, _native.FlatGrammar)


def test_what_is_read_is_what_was_planned() -> None:
    """Program, report and term are equal."""
    planned, read = again(), again()
    assert not is_read(planned)
    assert is_read(read)
    programs = [flatten(grammar, {}, None, NODES) for grammar in (planned, read)]
    assert programs[0].to_bytes() == programs[1].to_bytes()  # equal instructions are written once
    assert programs[0].rules == programs[1].rules
    assert read.description.policies == planned.description.policies
    assert read.description.entries == planned.description.entries
    assert read.item == planned.item
    assert flatten(read.item, {}, None, NODES).instructions == programs[0].instructions


@pytest.mark.parametrize(
    ("text", "is_member"),
    [
        ('{"name": "é"}', True),
        ('{"name": "no"}', False),
        ('{"next": {"x-1": null}}', True),
        ('{"next": {}}', False),
        ('{"list": [1, 2]}', True),
        ('{"list": [2, 2]}', False),
        ('{"list": [1, 3]}', False),
    ],
)
def test_it_constrains(text: str, is_member: bool) -> None:
    """Rules, intersections, complements and values that must differ, all kinds of instructions, work after reading."""
    again()
    grammar = again()
    assert is_read(grammar)
    data = text.encode()
    matcher = compile(grammar, BYTES).matcher()
    assert (matcher.accept_bytes(data) == len(data) and matcher.is_accepting) == is_member


def test_it_is_part_of_other_terms() -> None:
    """After text and beside itself the program is spliced in; where the language must be regular, the term is used."""
    schema = {"type": "string", "not": {"enum": ["a", "b"]}, "contains": True}  # which Python plans
    again(schema)
    read = again(schema)
    assert is_read(read)
    matcher = compile(literal("<") + read + "," + read + ">", BYTES).matcher()
    assert matcher.accept_bytes(b'<"c","a') == 7
    assert matcher.live_bytes()
    assert not matcher.accept_bytes(b'"')
    matcher = compile(Intersection((read, literal('"c"') | '"a"')), BYTES).matcher()
    assert matcher.forced_bytes() == b'"c"'


def test_what_differs_is_planned_anew() -> None:
    """Content, policy, limits and draft are all part of the file name."""
    again()
    assert is_read(again())
    assert not is_read(again(json.dumps({**SCHEMA, "minProperties": 0})))
    assert not is_read(again(whitespace="compact"))
    assert not is_read(again(limits=Limits(nesting=60)))
    assert not is_read(again(draft="2019-09"))
    assert not is_read(again(SCHEMA))
    assert is_read(again(SCHEMA))
    assert not is_read(again(registry={}))


def test_little_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is stored without ``keep``, for simple schemas, or if planning was fast."""
    json_schema(TEXT)
    again('{"type": "object"}')
    monkeypatch.setattr(kept, "WORTH_KEEPING_S", 3600)
    again()
    assert not list(folder.iterdir())


def test_a_file_of_something_else_is_planned_again(folder: Path) -> None:
    """Wrong content with a correct checksum is no error."""
    again()
    (path,) = folder.glob("grammar-*.bin")
    key = path.stem.removeprefix("grammar-")
    program = flatten(again().item, {}, None, NODES).to_bytes()
    for damaged in (
        b"",
        b"\n",
        b"[7, true, null]\n",
        b"[7, true]\n" + program,
        b"{}\n" + program,
        b"[7, true, 3]\n" + program,
    ):
        keep("grammar", key, damaged)
        assert not is_read(again())
        (path,) = folder.glob("grammar-*.bin")
    assert is_read(again())


def test_programs_with_tokens_are_not_packed() -> None:
    """They are meaningful in one vocabulary only."""
    vocabulary = Vocabulary([b"a", b""], eos=(), special={1: "<s>"})
    program = flatten(SpecialToken("<s>"), {}, vocabulary, NODES)
    with pytest.raises(ValueError, match="cannot be packed"):
        program.to_bytes()


def test_damaged_programs_are_refused_or_sound() -> None:
    """With any byte changed or missing, the result is an error or a program that an engine can run."""
    program = flatten(json_schema(TEXT), {}, None, NODES).to_bytes()
    assert _native.FlatGrammar.from_bytes(program).to_bytes() == program
    chance = random.Random(1)
    refused = 0
    for _ in range(600):
        damaged = bytearray(program)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        else:
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            flat = _native.FlatGrammar.from_bytes(bytes(damaged))
        except ValueError:
            refused += 1
            continue
        engine = _native.Engine(BYTES.trie, BYTES.size)
        bounds = _native.Limits()
        bounds.states, bounds.regular_states, bounds.steps = 2_000, 2_000, 200_000
        bounds.distance_steps, bounds.cache_bytes = 2_000, 1 << 20
        try:
            _native.couple(engine, flat, (), bounds, is_own=True)
        except (StructgenError, ValueError):
            continue
    assert refused > 200
