"""Mask words: reading, testing and changing bits."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.engine import Vocabulary
from structgen.engine.mask import allowed_ids, contains, empty_masks, mask_width, only_token, pack, without

SIZES = [1, 31, 32, 33, 64, 100]


@pytest.mark.parametrize("size", SIZES)
def test_packed_bits_are_read_back(size: int) -> None:
    """Id ``i`` is bit ``i & 31`` of word ``i >> 5``, and no bit beyond the vocabulary is set."""
    allowed = np.random.default_rng(size).random(size) < 0.5
    mask = pack(allowed)
    assert mask.dtype == np.int32
    assert mask.shape == (mask_width(size),)
    expected = np.flatnonzero(allowed).tolist()
    assert allowed_ids(mask).tolist() == expected
    assert [token for token in range(size) if contains(mask, token)] == expected
    assert [i for i in range(32 * len(mask)) if (int(mask[i >> 5]) & 0xFFFFFFFF) >> (i & 31) & 1] == expected
    assert allowed_ids(mask, size // 2).tolist() == [token for token in expected if token < size // 2]


def test_empty_masks_allow_nothing() -> None:
    """A row has one word per 32 tokens, given a vocabulary or its size."""
    vocabulary = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])
    for masks in (empty_masks(vocabulary, 3), empty_masks(257, 3)):
        assert masks.shape == (3, 9)
        assert masks.dtype == np.int32
        assert not masks.any()
    assert empty_masks(32).shape == (1, 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_only_token(size: int) -> None:
    """A single bit is found anywhere; no bit or several bits give None."""
    everything = pack(np.ones(size, dtype=np.bool_))
    for token in range(size):
        alone = without(everything, [other for other in range(size) if other != token])
        assert only_token(alone) == token
        assert only_token(without(alone, [token])) is None
    assert only_token(everything) == (0 if size == 1 else None)


@pytest.mark.parametrize("size", SIZES)
def test_tokens_are_taken_out_of_a_copy(size: int) -> None:
    """``without`` leaves its argument unchanged, and tokens that are not allowed make no difference."""
    mask = pack(np.arange(size) % 3 > 0)
    before = mask.copy()
    taken = [token for token in range(size) if token % 2]
    expected = [token for token in range(size) if token % 3 and not token % 2]
    assert allowed_ids(without(mask, taken)).tolist() == expected
    assert (mask == before).all()
    assert (without(mask, []) == mask).all()
