"""Orders that are copied a part at a time, and the estimators that read them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_mask_cases import bitmask_of
from ordered_without_replacement import OrderedWithoutReplacement
from structgen_kernels.choices.gumbel_order import gumbel_order
from structgen_kernels.errors import NonFiniteLogitsError
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import Noise
from token_orders import TokenOrders

from structgen.decode.step.without_replacement import sample_geometric, sample_recursive


@pytest.mark.usefixtures("backend")
def test_rows_come_whole_with_what_was_left() -> None:
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(1))
    logits[0, :15] = -torch.inf
    allowed = torch.ones(3, 20, dtype=torch.bool)
    allowed[2] = False
    noise, temperature = Noise.of(4, 3), torch.tensor([1.0, 0.5, 1.0])
    masks = MaskRows.of_bitmask(bitmask_of(allowed), 20)
    whole = gumbel_order(logits, noise, masks=masks, temperature=temperature, count=20)

    orders = TokenOrders(logits, noise, masks=masks, temperature=temperature, count=6)

    for row, length in enumerate((5, 20, 0)):
        entries = list(orders.row(row))
        assert [token for token, _, _ in entries] == whole.tokens[row, :length].tolist()
        for place, (_, log_p, left) in enumerate(entries):
            assert log_p == pytest.approx(float(whole.log_p[row, place]), abs=1e-6)
            assert left == pytest.approx(float(whole.left_log_mass[row, place]), abs=1e-6)
    assert orders.log_top == whole.log_top.tolist()


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(NonFiniteLogitsError):
        TokenOrders(torch.tensor([[0.0, torch.nan]]), Noise.of(0, 1))


@pytest.mark.parametrize("estimator", [sample_recursive, sample_geometric], ids=["recursive", "geometric"])
def test_weights_are_right_on_average_for_every_token(estimator: object) -> None:
    distribution = np.array([0.55, 0.25, 0.12, 0.06, 0.02])
    admitted = [False, True, False, True, True]
    rows = 30_000
    logits = torch.from_numpy(np.log(distribution)).float().expand(rows, -1)
    orders = TokenOrders(logits, Noise(torch.full((rows,), 8), torch.arange(rows)), count=5)
    generator = np.random.default_rng(6)
    total, square = np.zeros(5), np.zeros(5)
    for row in range(rows):
        sampled = estimator(OrderedWithoutReplacement(orders.row(row), generator), admitted.__getitem__)  # type: ignore[operator]
        if sampled.token is not None:
            total[sampled.token] += sampled.weight
            square[sampled.token] += sampled.weight**2
    mean = total / rows
    error = np.sqrt((square / rows - mean**2) / rows)
    expected = distribution * admitted
    assert (mean[~np.array(admitted)] == 0).all()
    # 5.2 standard errors: 2e-7 for each token.
    assert (np.abs(mean - expected) <= 5.2 * error).all(), (mean, expected, error)


def test_little_mass_is_not_lost() -> None:
    admitted = [False, False, True]
    logits = torch.tensor([[0.0, 0.0, -50.0]])
    orders = TokenOrders(logits, Noise.of(3, 1), count=2)
    sampled = sample_recursive(OrderedWithoutReplacement(orders.row(0), np.random.default_rng(0)), admitted.__getitem__)
    assert sampled.token == 2
    assert sampled.weight == pytest.approx(math.exp(-50) / 2, rel=1e-5)
