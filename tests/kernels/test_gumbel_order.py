"""Tokens are in the order of their keys, with the remaining mass before each, for all sizes of parts."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_mask_cases import mask_case
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE
from structgen_kernels.choices.gumbel_order import gumbel_order
from structgen_kernels.choices.token_order import Order, OrderWorkspace
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import STREAMS, Noise, random_words

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WORD = 2**32


def logits_of(rows: int, columns: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Make random logits with some minus infinities; rows have three columns of padding."""
    generator = torch.Generator().manual_seed(seed)
    whole = 3 * torch.randn(rows, columns + 3, generator=generator)
    whole[torch.rand(whole.shape, generator=generator) < 0.02] = -torch.inf
    return whole.to(dtype)[:, :columns]


def exact_keys(scaled: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Return the keys in float64."""
    token = torch.arange(scaled.shape[1]).expand(len(noise), -1)
    words = random_words(noise.seeds[:, None], noise.offsets[:, None], STREAMS["order"], token // 2)
    high, low = (torch.where(token % 2 == 0, words[each], words[each + 2]).double() for each in (0, 1))
    uniform = (high + (low + 0.5) / WORD) / WORD
    rest = (WORD - 1 - high + (WORD - low - 0.5) / WORD) / WORD
    return scaled - torch.log(torch.where(uniform < 0.5, -torch.log1p(-uniform), -torch.log(rest)))


def check_order(order: Order, scaled: torch.Tensor, keys: torch.Tensor, *, skipped: int = 0) -> None:
    """Compare with a sort in float64, from position ``skipped`` on."""
    count = order.tokens.shape[1]
    for row, status in enumerate(order.status.tolist()):
        possible = int((scaled[row] > -torch.inf).sum())
        assert (status == CHOSEN) == (possible > 0)
        live = min(count, max(0, possible - skipped))
        tokens = order.tokens[row, :live].long()
        assert tokens.unique().numel() == live
        assert (order.tokens[row, live:] == -1).all()
        for field in (order.keys, order.log_p, order.left_log_mass):
            assert (field[row, live:] == -torch.inf).all()
        if not live:
            continue
        ranked = keys[row].sort(descending=True)
        places = slice(skipped, skipped + live)
        differs = tokens != ranked.indices[places]
        torch.testing.assert_close(keys[row, tokens], ranked.values[places], atol=2e-5, rtol=0)
        assert differs.sum() <= 2
        torch.testing.assert_close(order.keys[row, :live].double(), keys[row, tokens], atol=2e-5, rtol=0)
        log_z = torch.logsumexp(scaled[row], 0)
        torch.testing.assert_close(order.log_z[row].double(), log_z, atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(order.log_top[row].double(), scaled[row].max() - log_z, atol=1e-5, rtol=1e-6)
        torch.testing.assert_close(order.log_p[row, :live].double(), scaled[row, tokens] - log_z, atol=2e-5, rtol=1e-6)
        left = scaled[row].clone()
        left[ranked.indices[:skipped]] = -torch.inf
        for place, token in enumerate(tokens.tolist()):
            expected = torch.logsumexp(left, 0) - log_z
            torch.testing.assert_close(order.left_log_mass[row, place].double(), expected, atol=2e-5, rtol=1e-6)
            left[token] = -torch.inf


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("size", "dtype", "is_masked", "is_tempered"),
    [
        (1, torch.float32, False, False),
        (31, torch.float16, True, True),
        (32, torch.float32, True, False),
        (33, torch.bfloat16, False, True),
        (4097, torch.float32, True, True),
        (4097, torch.bfloat16, False, False),
    ],
)
def test_the_order_is_that_of_a_sort_in_double_precision(
    size: int, dtype: torch.dtype, *, is_masked: bool, is_tempered: bool
) -> None:
    rows = 3
    logits = logits_of(rows, size + 5, dtype, seed=size)[:, : size + 5 * is_masked]
    case = mask_case(rows, size, seed=size, codes=2)
    temperature = torch.tensor([0.5, 1.7, 30.0]) if is_tempered else None
    noise = Noise(torch.tensor([3, -4, 2**40]), torch.tensor([0, 2**35, -1]))
    size = size if is_masked else logits.shape[1]
    scaled = logits[:, :size].double()
    if temperature is not None:
        scaled /= temperature[:, None].double()
    if is_masked:
        scaled = torch.where(case.allowed, scaled, -torch.inf)
    keys = exact_keys(scaled, noise)

    def order(after: Order | None) -> Order:
        masks = case.masks if is_masked else None
        return gumbel_order(logits, noise, masks=masks, temperature=temperature, count=5, after=after)

    first = order(None)
    check_order(first, scaled, keys)
    check_order(order(first), scaled, keys, skipped=5)


@pytest.mark.usefixtures("backend")
def test_parts_continue_each_other_whatever_their_length() -> None:
    logits = logits_of(2, 300, torch.float16, seed=1)
    noise = Noise.of(11, 2)
    whole = gumbel_order(logits, noise, count=14)

    part = gumbel_order(logits, noise, count=1)
    found = [part]
    for count in (2, 3, 8):
        part = gumbel_order(logits, noise, count=count, after=part)
        found.append(part)

    assert torch.equal(torch.cat([each.tokens for each in found], 1), whole.tokens)
    assert torch.equal(torch.cat([each.keys for each in found], 1), whole.keys)
    assert torch.equal(torch.cat([each.log_p for each in found], 1), whole.log_p)
    left = torch.cat([each.left_log_mass for each in found], 1)
    torch.testing.assert_close(left, whole.left_log_mass, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("backend")
def test_a_part_may_be_written_over_the_one_before() -> None:
    logits, noise, workspace = logits_of(2, 70, torch.float32, seed=2), Noise.of(5, 2), OrderWorkspace(2, 70, "cpu")
    first = gumbel_order(logits, noise, count=4)
    expected = gumbel_order(logits, noise, count=4, after=first)

    found = gumbel_order(logits, noise, count=4, after=first, out=first, workspace=workspace)

    assert found is first
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.left_log_mass, expected.left_log_mass)


@pytest.mark.usefixtures("backend")
def test_a_row_does_not_depend_on_its_batch() -> None:
    case = mask_case(5, 200, seed=3, possible=True)
    logits, noise = logits_of(5, 200, torch.float32, seed=3), Noise.of(9, 5)
    temperature = torch.linspace(0.4, 2, 5)
    together = gumbel_order(logits, noise, masks=case.masks, temperature=temperature, count=6)
    for row in (0, 4):
        one = slice(row, row + 1)
        alone = gumbel_order(
            logits[one].clone(),
            Noise(noise.seeds[one], noise.offsets[one]),
            masks=MaskRows(case.masks.table, case.masks.codes[one]),
            temperature=temperature[one],
            count=6,
        )
        for field in ("tokens", "keys", "log_p", "left_log_mass", "log_z", "log_top"):
            assert torch.equal(getattr(alone, field)[0], getattr(together, field)[row])


@pytest.mark.usefixtures("backend")
def test_a_mask_leaves_the_order_of_the_rest() -> None:
    case = mask_case(2, 20, seed=8, possible=True)
    logits, noise = logits_of(2, 20, torch.float32, seed=4), Noise.of(21, 2)
    free = gumbel_order(logits, noise, count=20)
    masked = gumbel_order(logits, noise, masks=case.masks, count=20)
    for row in range(2):
        kept = [token for token in free.tokens[row].tolist() if token >= 0 and case.allowed[row, token]]
        assert [token for token in masked.tokens[row].tolist() if token >= 0] == kept


@pytest.mark.usefixtures("backend")
def test_tokens_of_any_mass_come_with_what_was_left() -> None:
    logits = torch.full((1, 400), -torch.inf)
    places, values = [3, 77, 200, 399, 5], [0.0, -20.0, -70.0, -300.0, -3e4]
    logits[0, places] = torch.tensor(values)
    order = gumbel_order(logits, Noise.of(1, 1), count=6)
    assert order.tokens.tolist() == [[*places, -1]]
    expected = torch.tensor([[*values, -math.inf]])
    torch.testing.assert_close(order.left_log_mass, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(order.log_p, expected, rtol=1e-6, atol=1e-6)
    assert float(order.left_log_mass[0, 0]) == 0


def test_the_first_two_tokens_have_their_distribution() -> None:
    distribution = torch.tensor([0.5, 0.3, 0.15, 0.05, 1e-3], dtype=torch.float64)
    distribution /= distribution.sum()
    rows, temperature = 150_000, torch.tensor([1.6])
    logits = (distribution.log() * 1.6).float().expand(rows, -1)
    seeds = torch.full((rows,), 5)
    noise = Noise(seeds, torch.arange(rows))

    order = gumbel_order(logits, noise, temperature=temperature.expand(rows).contiguous(), count=2)

    pairs = distribution[:, None] * distribution / (1 - distribution[:, None])
    pairs.fill_diagonal_(0)
    counts = torch.bincount(order.tokens[:, 0] * 5 + order.tokens[:, 1], minlength=25).view(5, 5)
    kept = pairs > 0
    assert int(counts[~kept].sum()) == 0
    expected = rows * pairs[kept]
    assert expected.min() > 5
    # 19 degrees of freedom: above 66.7 with a probability of 3e-7.
    assert float(((counts[kept] - expected) ** 2 / expected).sum()) < 66.7


@pytest.mark.usefixtures("backend")
def test_rows_without_an_order_say_why() -> None:
    logits = torch.zeros(7, 40)
    logits[1] = -torch.inf
    logits[2, 39], logits[3, 0] = torch.nan, torch.inf
    logits[5, 7] = torch.nan  # not allowed there
    allowed = torch.full((7, 2), -1, dtype=torch.int32)
    allowed[0] = 0
    allowed[5] = 0b11
    temperature = torch.tensor([1.0, 1, 1, 1, 0, 1, 1])

    def order(after: Order | None) -> Order:
        masks = MaskRows.of_bitmask(allowed, 40)
        return gumbel_order(logits, Noise.of(0, 7), masks=masks, temperature=temperature, count=2, after=after)

    first = order(None)
    assert first.status.tolist() == [EMPTY, MASSLESS, NON_FINITE, NON_FINITE, NON_FINITE, CHOSEN, CHOSEN]
    second = order(first)
    assert second.status.tolist() == first.status.tolist()
    for part in (first, second):
        assert (part.tokens[:5] == -1).all()
        for field in (part.keys, part.log_p, part.left_log_mass, part.log_z[:, None], part.log_top[:, None]):
            assert (field[:5] == -torch.inf).all()
            assert not field.isnan().any()
    assert sorted(first.tokens[5].tolist()) == [0, 1]
    with pytest.raises(NonFiniteLogitsError) as broken:
        first.check()
    assert broken.value.rows == (2, 3, 4)
    calm = gumbel_order(logits[:2], Noise.of(0, 2), masks=MaskRows.of_bitmask(allowed[:2], 40), count=1)
    with pytest.raises(EmptyRowError) as empty:
        calm.check()
    assert empty.value.rows == (0, 1)


@pytest.mark.usefixtures("backend")
def test_no_rows() -> None:
    assert gumbel_order(torch.zeros(0, 10), Noise.of(0, 0), count=3).tokens.shape == (0, 3)


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    logits, noise = torch.zeros(2, 40), Noise.of(0, 2)
    part = gumbel_order(logits, noise, count=2)
    wrong = {
        "logits": {"logits": torch.zeros(2, 40, dtype=torch.float64)},
        "noise": {"noise": Noise.of(0, 3)},
        "masks": {"masks": MaskRows.everything(3, 40, logits.device)},
        "temperature": {"temperature": torch.ones(2, dtype=torch.float64)},
        "count": {"count": 0},
        "after": {"after": gumbel_order(torch.zeros(3, 40), Noise.of(0, 3), count=2)},
        "out": {"out": part, "count": 3},
    }
    for argument, changed in wrong.items():
        with pytest.raises(KernelArgumentError) as caught:
            gumbel_order(**{"logits": logits, "noise": noise, **changed})
        assert caught.value.argument == argument


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    case = mask_case(2, 700, seed=0)
    noise, temperature = Noise.of(0, 2), torch.ones(2)
    for dtype in DTYPES:
        logits = torch.zeros(2, 131_072, dtype=dtype)
        gumbel_order(logits, noise, after=gumbel_order(logits, noise))
        gumbel_order(logits[:, :700], noise, masks=case.masks, temperature=temperature)
