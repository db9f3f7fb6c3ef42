"""Networks of rules: states with equal continuations are merged, and no others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from structgen.engine.network import _minimal, _Table


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
