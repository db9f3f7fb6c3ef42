"""Digits of the rows of a product, in native code, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from structgen_kernels import _native


def digits_of(x: Any) -> tuple[Any, Any]:
    """What the native code writes into fresh arrays."""
    rows, width = x.shape
    digits, scales = np.full((2 * rows, width), 7, np.float32), np.full(rows, 7, np.float32)
    _native.write_digits(x, digits, scales)
    return digits, scales


@pytest.mark.parametrize(("rows", "width"), [(0, 3), (1, 1), (1, 576), (5, 37), (33, 64)])
def test_digits_are_those_of_numpy(rows: int, width: int) -> None:
    """To the last bit, with rows of zeros, ties, and elements of very different sizes."""
    random = np.random.default_rng(rows)
    x = (random.standard_normal((rows, width)) * 10.0 ** random.integers(-6, 6, (rows, 1))).astype(np.float32)
    if rows > 2:
        x[1], x[2] = 0, np.arange(width) / 2
    digits, scales = digits_of(x)
    expected = np.maximum(np.abs(x).max(axis=1, initial=0) / np.float32(63), np.float32(1e-30))
    whole = np.rint(x / expected[:, None])
    assert (scales == expected).all()
    assert (digits[:rows] == whole).all()
    assert (digits[rows:] == (x / expected[:, None] - whole) * np.float32(126)).all()


def test_rows_may_be_apart() -> None:
    """As the rows of a slice are."""
    wide = np.random.default_rng(0).standard_normal((4, 20)).astype(np.float32)
    for found, expected in zip(digits_of(wide[:, 3:11]), digits_of(wide[:, 3:11].copy()), strict=True):
        assert (found == expected).all()


def test_what_is_no_number_spoils_its_own_row_alone() -> None:
    """As in torch's operations."""
    x = np.ones((3, 9), np.float32)
    x[1, 4], x[2, 0] = np.nan, -np.inf
    digits, scales = digits_of(x)
    assert np.isfinite(digits[[0, 3]]).all()
    assert np.isnan(scales[1])
    assert np.isinf(scales[2])
    assert np.isnan(digits[[1, 4]]).all()
    assert np.isnan(digits[2, 0])


def test_products_of_both_digits_are_joined() -> None:
    """The rows of the low digits stay as they are."""
    random = np.random.default_rng(3)
    products, scales = (
        random.integers(-(2**20), 2**20, (10, 41)).astype(np.float32),
        np.linspace(0.1, 5, 5, dtype=np.float32),
    )
    joined = products.copy()
    _native.join_digits(joined, scales)
    exact = (products[5:] / 126.0 + products[:5]) * scales[:, None].astype(np.float64)
    assert joined[:5] == pytest.approx(exact, rel=3e-7, abs=1e-3)
    assert (joined[5:] == products[5:]).all()


@pytest.mark.parametrize(
    ("x", "digits", "scales"),
    [
        ((2, 3), (3, 3), 2),
        ((2, 3), (4, 4), 2),
        ((2, 3), (4, 3), 1),
        ((2, 0), (4, 0), 2),
    ],
)
def test_arrays_of_other_sizes_are_refused(x: Any, digits: Any, scales: int) -> None:
    """Nothing is written."""
    with pytest.raises(ValueError, match="write_digits"):
        _native.write_digits(np.zeros(x, np.float32), np.zeros(digits, np.float32), np.zeros(scales, np.float32))
    with pytest.raises(ValueError, match="join_digits"):
        _native.join_digits(np.zeros((3, 4), np.float32), np.zeros(2, np.float32))
    with pytest.raises(TypeError):
        _native.write_digits(np.zeros((2, 3)), np.zeros((4, 3), np.float32), np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        _native.write_digits(
            np.zeros((2, 6), np.float32)[:, ::2], np.zeros((4, 3), np.float32), np.zeros(2, np.float32)
        )
