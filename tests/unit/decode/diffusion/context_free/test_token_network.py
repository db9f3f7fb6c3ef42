"""Rows of numbers are sorted alike, whether they fit into one number or not."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.decode.diffusion.context_free.token_network import _sorted_rows


@pytest.mark.parametrize("largest", [1, 3, 1 << 20, 1 << 21, np.iinfo(np.int32).max])
def test_rows_are_in_their_order(largest: int) -> None:
    chance = np.random.default_rng(largest)
    for count in (0, 1, 40):
        rows = chance.integers(0, largest, size=(count, 3), endpoint=True, dtype=np.int32)
        rows[count // 2 :, :2] = rows[: count - count // 2, :2]
        found = _sorted_rows(rows)
        assert found.dtype == np.int32
        assert found.tolist() == sorted(rows.tolist())
