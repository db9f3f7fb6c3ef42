"""The largest logits, against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.decode.speculative.drafters.likely_tokens import top_tokens


@pytest.mark.parametrize("size", [1, 7, 31, 66, 100, 131, 383, 1_000, 5_003])
@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_they_are_those_of_a_stable_sort(size: int, decimals: int) -> None:
    rng = np.random.default_rng([size, decimals])
    for rows in (1, 2, 5):
        logits = np.round(rng.standard_normal((rows, size)) * 3, decimals).astype(np.float32)
        logits[rng.random(logits.shape) < 0.1] = -np.inf
        logits[:, 0] = 9.0
        for count in (1, 3, 8, 33):
            tokens, values = top_tokens(logits, count)
            expected = np.argsort(-logits, axis=1, kind="stable")[:, :count]
            finite = np.take_along_axis(logits, expected, axis=1) > -np.inf
            assert values.tolist() == np.take_along_axis(logits, expected, axis=1).tolist()
            assert tokens[finite].tolist() == expected[finite].tolist()


def test_equal_logits_are_taken_by_id() -> None:
    tokens, values = top_tokens(np.zeros((2, 2_000), dtype=np.float32), 4)
    assert tokens.tolist() == [[0, 1, 2, 3]] * 2
    assert values.tolist() == [[0.0] * 4] * 2


def test_the_last_token_is_found() -> None:
    for size in range(380, 420):
        logits = np.zeros((1, size), dtype=np.float32)
        logits[0, -1] = 1
        assert top_tokens(logits, 2)[0].tolist() == [[size - 1, 0]]
