"""How many draft tokens fit in memory: compared with counting upward."""

from __future__ import annotations

import random

import pytest

from structgen.methods.tree_policies.sequoia import DraftMemory


def test_the_most_nodes_fit_and_one_more_does_not() -> None:
    rng = random.Random(0)
    for _ in range(500):
        memory = DraftMemory(rng.randint(1, 50), rng.randint(0, 4))
        limit, context, sequences = rng.randint(0, 5000), rng.randint(0, 60), rng.randint(1, 4)
        found = memory.max_nodes(limit, context, sequences=sequences)
        assert sequences * memory.size(found, context) <= limit
        assert sequences * memory.size(found + 1, context) > limit


def test_the_memory_of_a_transformer() -> None:
    memory = DraftMemory.of(layers=30, key_value_heads=3, head_size=64, vocabulary_size=49_152)
    assert memory.node == 30 * 2 * 3 * 64 * 4 + 49_152 * 4
    assert memory.size(8, 100) == 8 * memory.node + 8 * 108 * 4
    half = DraftMemory.of(layers=30, key_value_heads=3, head_size=64, vocabulary_size=49_152, number=2)
    assert (half.max_nodes(1 << 23, 100), memory.max_nodes(1 << 23, 100)) == (38, 34)


def test_numbers_that_make_no_sense_are_refused() -> None:
    for node, pair in ((0, 0), (1, -1)):
        with pytest.raises(ValueError, match="DraftMemory"):
            DraftMemory(node, pair)
    with pytest.raises(ValueError, match="at least 1"):
        DraftMemory.of(layers=0, key_value_heads=1, head_size=1, vocabulary_size=1)
    for limit, context, sequences in ((-1, 0, 1), (1, -1, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="must not be negative"):
            DraftMemory(1).max_nodes(limit, context, sequences=sequences)
