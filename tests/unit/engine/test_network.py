"""Networks of rules: which are recursive, what is counted, and that states with equal continuations are merged."""

from __future__ import annotations

import random

import numpy as np
import pytest
from structgen_kernels import _native

import structgen as sg
from structgen.engine.network import _minimal, _Table, network_of, recurs
from structgen.errors import LimitExceeded
from structgen.grammar.limits import counted

VOCABULARY = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def coarsest(table: _Table) -> list[int]:
    """The block of each state: all blocks are divided until nothing changes."""
    block = [int(final) for final in table.final]
    while True:
        keys = []
        for state, row in enumerate(table.rows):
            reads = tuple(block[target] if target >= 0 else -1 for target in row.tolist())
            calls = frozenset((block[start], block[after]) for one, start, after in table.calls if one == state)
            specials = frozenset((token, block[after]) for one, token, after in table.specials if one == state)
            keys.append((block[state], reads, calls, specials))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        finer = [numbers[key] for key in keys]
        if len(numbers) == len(set(block)):
            return finer
        block = finer


@pytest.mark.parametrize("seed", range(2))
def test_states_are_merged_iff_their_continuations_are_equal(seed: int) -> None:
    """Small random tables with calls and special tokens, against the definition."""
    rng = random.Random(seed)
    for _ in range(50):
        size, kinds = rng.randint(1, 12), rng.randint(1, 3)
        table = _Table(np.arange(256, dtype=np.intp) % kinds)
        states = [-1, *range(size)]
        table.rows = [np.array(rng.choices(states, k=kinds), dtype=np.int32) for _ in range(size)]
        table.final = [rng.random() < 0.3 for _ in range(size)]
        table.calls = [tuple(rng.choices(range(size), k=3)) for _ in range(rng.randint(0, 4))]
        table.specials = [
            (rng.randrange(size), rng.choice((300, 301)), rng.randrange(size)) for _ in range(rng.randint(0, 2))
        ]
        wanted = coarsest(table)
        network = _minimal(table)
        assert network.states == len(set(wanted))
        for state, row in enumerate(table.rows):
            assert network.final[wanted[state]] == table.final[state]
            assert network.next[wanted[state], :kinds].tolist() == [
                wanted[to] if to >= 0 else -1 for to in row.tolist()
            ]
        assert set(network.calls) == {tuple(wanted[state] for state in call) for call in table.calls}
        assert set(network.specials) == {(wanted[one], token, wanted[after]) for one, token, after in table.specials}


@pytest.mark.parametrize(
    ("grammar", "is_recursive"),
    [
        (sg.regex("a{3,9}b*"), False),
        (sg.json_schema({"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}), False),
        (sg.lark('start: a a\na: b | "x" b\nb: "y"+'), False),
        (sg.lark('start: "(" start ")" | "x"'), True),
        (sg.lark('start: "a" start | "b"'), True),
        (sg.lark('start: a\na: "x" b?\nb: "y" c\nc: a | "z"'), True),
        (sg.json_schema({}), True),
        (sg.json_schema({"properties": {"to": {"$ref": "#"}}, "additionalProperties": False}), True),
    ],
)
def test_recursive_rules_are_found(grammar: sg.Grammar, is_recursive: bool) -> None:
    assert recurs(sg.compile(grammar, VOCABULARY)) == is_recursive


def test_networks_are_counted_as_they_are_made() -> None:
    """One state is the most that is made beyond a limit, and what it takes to enter the others is counted, too."""
    texts = {f"p{at}": {"type": "string", "pattern": "^[a-z.-]+$", "maxLength": 80} for at in range(30)}
    constraint = sg.compile(sg.json_schema({"type": "object", "properties": {**texts, "any": {}}}), VOCABULARY)
    every, made = _native.counted_calls(constraint.native, 20_000, 500, 1 << 60)
    assert made is not None
    assert len(made[0]) > 1_000
    assert every > 500 * len(made[0])
    steps, none = _native.counted_calls(constraint.native, 20_000, 500, every // 4)
    assert none is None
    assert every // 4 < steps < every // 4 + 500 + 256 * 96
    limits = sg.Limits(canvas_steps=every // 4)
    with (
        counted(limits, limit="canvas_steps"),
        pytest.raises(LimitExceeded, match=r"^network of a grammar: more than canvas_steps="),
    ):
        network_of(constraint)
