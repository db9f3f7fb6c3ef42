"""Sampled tokens have the distribution of the host's sampler, and are determined by the random numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from graph_capture import recorded_step
from kernel_mask_cases import bitmask_of, mask_case
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE, Choice
from structgen_kernels.choices.masked_argmax import masked_argmax
from structgen_kernels.choices.masked_sample import Shape, Uniforms, masked_sample
from structgen_kernels.choices.step_workspace import CANDIDATES, Workspace
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import STREAMS, Noise, exponential, random_words

from structgen.decode.step.sampler import Multinomial

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NEAR = 1e-5
"""The distance from a boundary within which float32 rounding may decide."""


class Options(NamedTuple):
    """The temperature and the truncation of one row."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def weights(self, values: np.ndarray) -> np.ndarray:
        """Return the probabilities of the host's sampler, float64, zero for excluded tokens."""
        weights = np.zeros(len(values))
        ids = np.flatnonzero(values > -np.inf)
        if self.temperature == 0:
            weights[values.argmax()] = 1
        else:
            sampler = Multinomial(self.temperature, self.top_k or None, self.top_p, self.min_p)
            weights[ids] = sampler.shaped(values[ids])
        return weights

    def is_near(self, values: np.ndarray) -> bool:
        """Whether rounding could change which tokens are kept."""
        kept = [
            self._replace(top_p=min(1.0, self.top_p * factor), min_p=min(1.0, self.min_p * factor)).weights(values) > 0
            for factor in (1 - NEAR, 1 + NEAR)
        ]
        return not np.array_equal(*kept)


def shape_of(rows: list[Options]) -> Shape:
    def reals(name: str) -> torch.Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=torch.float64)

    ks = torch.tensor([row.top_k for row in rows], dtype=torch.int32)
    return Shape(reals("temperature"), ks, reals("top_p"), reals("min_p"))


def random_options(rng: np.random.Generator, rows: int) -> list[Options]:
    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    return [
        Options(one(0.5, 1.0, 1.7, 1.0, 0.0), one(0, 0, 1, 3, 40), one(1.0, 0.5, 0.9, 0.99), one(0.0, 0.0, 0.02, 0.3))
        for _ in range(rows)
    ]


def allowed_values(logits: torch.Tensor, allowed: torch.Tensor) -> np.ndarray:
    """Return the allowed logits in float64, -inf for excluded tokens."""
    values: np.ndarray = logits[: len(allowed)].to(torch.float64).masked_fill(~allowed, -torch.inf).numpy()
    return values


def arrivals(noise: Noise, row: int, stream: str, count: int) -> np.ndarray:
    high, low, _, _ = random_words(noise.seeds[row], noise.offsets[row], STREAMS[stream], torch.arange(count))
    found: np.ndarray = exponential(high, low).to(torch.float64).numpy()
    return found


def raced(weights: np.ndarray, noise: Noise, row: int, *, is_whole: bool) -> int | None:
    """Return the token that the noise determines, in float64; None if two arrive within rounding of each other."""
    keep = np.ones(len(weights), dtype=bool)
    if is_whole:
        masses = np.add.reduceat(weights, np.arange(0, len(weights), 128))
        chunk = first_arrival(masses / arrivals(noise, row, "chunk", len(masses)))
        if chunk is None:
            return None
        keep = np.arange(len(weights)) // 128 == chunk
    return first_arrival(np.where(keep, weights, 0) / arrivals(noise, row, "token", len(weights)))


def first_arrival(scores: np.ndarray) -> int | None:
    best = int(scores.argmax())
    others = np.delete(scores, best)
    return None if len(others) and others.max() > scores[best] * (1 - NEAR) else best


def looked_up(weights: np.ndarray, uniform: float) -> int | None:
    """Return the token that a uniform number determines; None within rounding of a boundary."""
    sums = np.cumsum(weights)
    if np.abs(sums / sums[-1] - uniform).min() < NEAR:
        return None
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def random_logits(rng: np.random.Generator, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Make logits: some rows with many equal ones, some with minus infinity."""
    logits = torch.tensor(rng.normal(size=(rows, columns)) * 3)
    logits[::2] = logits[::2].round()
    logits[torch.tensor(rng.random((rows, columns)) < 0.02)] = -torch.inf
    return logits.to(dtype)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", [1, 31, 33, 700, 4097])
@pytest.mark.parametrize("source", ["noise", "uniforms"])
def test_tokens_are_those_that_the_numbers_say(source: str, size: int) -> None:
    rng, rows = np.random.default_rng(size), {1: 3, 700: 10, 4097: 5}.get(size, 6)
    case = mask_case(rows, size, seed=size, possible=True)
    logits = random_logits(rng, rows, size + 6, DTYPES[size % 3])[:, : size + 2]
    options = random_options(rng, rows)
    noise, uniforms = Noise.of(size, rows, offset=3), rng.random(rows)

    chance = noise if source == "noise" else Uniforms(torch.tensor(uniforms))
    choice = masked_sample(logits, case.masks, shape_of(options), chance)

    skipped = 0
    for row, option in enumerate(options):
        values = allowed_values(logits[row], case.allowed[row])
        if not (values > -np.inf).any():
            assert int(choice.tokens[row]) == -1
            continue
        weights = option.weights(values)
        is_whole = option == Options(option.temperature) or option.temperature == 0
        token = (
            raced(weights, noise, row, is_whole=is_whole) if source == "noise" else looked_up(weights, uniforms[row])
        )
        if token is None or option.is_near(values):
            skipped += 1
        else:
            assert int(choice.tokens[row]) == token, (row, option)
            assert float(choice.log_p[row]) == pytest.approx(values[token] - np.logaddexp.reduce(values), abs=1e-5)
    assert skipped <= 1


@pytest.mark.usefixtures("backend")
def test_scalars_are_those_of_argmax() -> None:
    case = mask_case(6, 300, seed=4)
    logits = random_logits(np.random.default_rng(0), 6, 300, torch.float32)
    best = masked_argmax(logits, case.masks)
    sampled = masked_sample(logits, case.masks, Shape.of(6, temperature=0.0, top_k=2, top_p=0.5), Noise.of(0, 6))
    for one, other in zip(best.arguments(), sampled.arguments(), strict=True):
        assert torch.equal(one, other)


def test_a_large_vocabulary_by_the_kernel() -> None:
    case = mask_case(1, 131_073, seed=5, possible=True)
    logits = (torch.randn(1, 131_080, generator=torch.Generator().manual_seed(2)) * 3).to(torch.bfloat16)
    values = allowed_values(logits[0], case.allowed[0])
    option, uniform = Options(0.5, top_p=0.5), 0.4
    with use_backend("triton"):
        choice = masked_sample(logits, case.masks, shape_of([option]), Uniforms(torch.tensor([uniform]).double()))
    weights = option.weights(values)
    sums = np.cumsum(weights) / weights.sum()
    token = int(choice.tokens[0])
    assert weights[token] > 0
    assert sums[token] - weights[token] / weights.sum() - NEAR <= uniform <= sums[token] + NEAR


# Candidates: what may be kept is gathered where it fits, and searched where it lies where it does not.


def crowd(count: int, size: int = 2600) -> torch.Tensor:
    """Make logits with about ``count`` candidates: equal ones at scattered ids, and lower ones at all others."""
    logits = torch.full((size,), -30.0)
    ids = torch.randperm(size, generator=torch.Generator().manual_seed(count))[:count]
    logits[ids] = 0.0
    return logits


@pytest.mark.usefixtures("backend")
def test_ties_are_the_same_where_candidates_fit_and_where_they_do_not() -> None:
    counts = [CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 3, 2600]
    logits = torch.stack([crowd(count) for count in counts])
    masks = MaskRows.everything(5, 2600, logits.device)
    kept = [2, CANDIDATES - 1, math.ceil(0.3 * (CANDIDATES + 1)), 2, 1950]
    options = [
        Options(top_k=2),
        Options(top_k=CANDIDATES - 1),
        Options(top_p=0.3),
        Options(top_k=2, top_p=0.99),
        Options(top_p=0.75),
    ]
    numbers = Uniforms(torch.full((5,), 1 - 1e-9, dtype=torch.float64))  # the highest id that is kept
    found = masked_sample(logits, masks, shape_of(options), numbers).tokens.tolist()
    ids = [torch.argsort(row, descending=True, stable=True)[:count] for row, count in zip(logits, kept, strict=True)]
    assert found == [int(each.max()) for each in ids]


@pytest.mark.parametrize("source", ["noise", "uniforms"])
def test_the_kernel_finds_what_its_reference_finds_however_many_candidates_there_are(source: str) -> None:
    rng, size = np.random.default_rng(1), 2700
    logits = torch.stack(
        [
            crowd(CANDIDATES - 1, size),
            crowd(CANDIDATES, size),
            crowd(CANDIDATES + 1, size),
            torch.tensor(rng.normal(size=size)),  # flat: the bound says little
            torch.tensor(rng.permutation(-1.5 * np.log(np.arange(size) + 3))),
            torch.tensor(-1.5 * np.log(np.arange(size) + 3)),  # probable ones in few chunks
            torch.tensor(rng.normal(size=size) * 0.2),  # a search first, then few enough to be gathered
        ]
    ).float()
    options = [
        Options(top_k=100),
        Options(top_p=0.5, min_p=0.1),
        Options(top_k=CANDIDATES, top_p=0.9),
        Options(top_p=0.97),
        Options(0.7, top_p=0.9),
        Options(top_k=50, top_p=0.9),
        Options(top_p=0.6),
    ]
    masks = MaskRows.everything(len(logits), size, logits.device)
    values = torch.tensor(rng.random(len(logits)))
    chance = Noise.of(9, len(logits)) if source == "noise" else Uniforms(values)
    tokens = {}
    for name in ("torch", "triton"):
        with use_backend(name):
            tokens[name] = masked_sample(logits, masks, shape_of(options), chance).tokens.clone()
    assert tokens["torch"].tolist() == tokens["triton"].tolist()


# Chi-square.  The reference implementation draws many tokens at once; that kernels draw the same ones is shown above
# and, nightly, below.

DISTRIBUTIONS = {
    "whole": Options(),
    "cold": Options(0.5),
    "top_k": Options(1.3, top_k=7),
    "top_p": Options(top_p=0.8),
    "min_p": Options(min_p=0.15),
    "all": Options(0.8, top_k=20, top_p=0.9, min_p=0.05),
}


def distribution_logits(size: int = 200) -> torch.Tensor:
    """Make logits in steps of 0.5, so that every threshold falls on ties."""
    logits = (torch.randn(size, generator=torch.Generator().manual_seed(8)) * 2).round(decimals=0) / 2
    logits[17] = -torch.inf
    return logits


def assert_fits(tokens: torch.Tensor, weights: np.ndarray) -> None:
    """Check by chi-square at 1e-6, tokens with an expected count below 10 pooled; none may have weight zero."""
    counts = np.bincount(tokens.numpy(), minlength=len(weights))
    assert not counts[weights == 0].any()
    expected = weights / weights.sum() * counts.sum()
    few = expected < 10
    expected = np.append(expected[~few], expected[few].sum())
    counts = np.append(counts[~few], counts[few].sum())
    kept = expected > 0
    statistic = ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    # The quantile by Wilson and Hilferty (1931).
    degrees = max(1, int(kept.sum()) - 1)
    assert statistic <= degrees * (1 - 2 / (9 * degrees) + 4.753 * math.sqrt(2 / (9 * degrees))) ** 3


def sampled_often(
    logits: torch.Tensor, allowed: torch.Tensor, option: Options, draws: int, source: str
) -> torch.Tensor:
    size = len(allowed)
    masks = MaskRows.of_bitmask(bitmask_of(allowed[None]).expand(draws, -1), size)
    numbers = np.random.default_rng(6).random(draws)
    chance = Noise.of(12_345, draws) if source == "noise" else Uniforms(torch.tensor(numbers))
    return masked_sample(logits.expand(draws, -1), masks, shape_of([option] * draws), chance).tokens


@pytest.mark.parametrize("source", ["noise", "uniforms"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_distribution_is_that_of_the_host(name: str, source: str) -> None:
    logits, allowed = distribution_logits(), torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.6
    tokens = sampled_often(logits, allowed, DISTRIBUTIONS[name], 5000, source)
    assert_fits(tokens, DISTRIBUTIONS[name].weights(allowed_values(logits, allowed)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_distribution_of_the_kernel_is_that_of_the_host(name: str) -> None:
    logits, allowed = distribution_logits(), torch.rand(200, generator=torch.Generator().manual_seed(1)) < 0.6
    with use_backend("triton"):
        tokens = sampled_often(logits, allowed, DISTRIBUTIONS[name], 250, "noise")
    assert_fits(tokens, DISTRIBUTIONS[name].weights(allowed_values(logits, allowed)))


def test_many_equal_logits_are_equally_probable() -> None:
    logits = torch.full((1300,), 3.0, dtype=torch.bfloat16)
    logits[1200:] = -1.0
    tokens = sampled_often(logits, torch.arange(1300) < 1200, Options(1.0), 1500, "noise")
    assert_fits(tokens // 25, np.ones(48))


def test_tokens_of_tiny_probability_come_as_often_as_they_should() -> None:
    # A token of probability 1e-7 wins where its number is some 1e-7 of the others'. Hundreds of millions of draws would
    # show that; fewer suffice to check the numbers that decide: they are small as often as they should be, and no two
    # are equal.
    rows = 100_000
    noise = Noise.of(77, rows)
    index = torch.zeros(rows, dtype=torch.int64)
    first, second = (
        exponential(*random_words(noise.seeds, noise.offsets, STREAMS["token"], index + token)[:2]).double()
        for token in (0, 1)
    )
    for bound in (1e-2, 1e-3, 1e-4):
        expected = rows * 2 * -math.expm1(-bound)
        assert abs(float((torch.cat([first, second]) < bound).sum()) - expected) < 5 * math.sqrt(expected)
    small = torch.cat([first, second]).sort().values[:100]
    assert len(small.unique()) == 100


@pytest.mark.usefixtures("backend")
def test_a_token_of_tiny_probability_is_found_where_its_number_is() -> None:
    # Ids 3 and 260 have 1e-7 each; the rest is on id 100.
    logits = torch.full((4, 300), -torch.inf)
    logits[:, 100] = 0.0
    logits[:, [3, 260]] = math.log(1e-7)
    masks = MaskRows.everything(4, 300, logits.device)
    uniforms = torch.tensor([0.5e-7, 1.5e-7, 1 - 2e-7, 1 - 0.5e-7], dtype=torch.float64)
    assert masked_sample(logits, masks, Shape.of(4), Uniforms(uniforms)).tokens.tolist() == [3, 100, 100, 260]
    kept = masked_sample(logits, masks, Shape.of(4, min_p=1e-8), Uniforms(uniforms))
    assert kept.tokens.tolist() == [3, 100, 100, 260]


@pytest.mark.usefixtures("backend")
def test_ties_at_a_threshold_go_to_the_lowest_ids() -> None:
    # 600 equal logits that are allowed from id 100 on, and a better one at id 500.
    logits = torch.zeros(5, 700, dtype=torch.bfloat16)
    logits[:, 500] = 1.0
    allowed = torch.arange(700) >= 100
    masks = MaskRows.of_bitmask(bitmask_of(allowed.expand(5, -1)), 700)
    total = math.e + 599
    options = [
        Options(top_k=3),
        Options(top_k=402),
        Options(top_p=(math.e + 149.5) / total),
        Options(top_k=11, top_p=(math.e + 4.5) / (math.e + 10)),
        Options(min_p=0.5),
    ]
    highest = [101, 500 + 1, 249, 104, 500]
    last = masked_sample(logits, masks, shape_of(options), Uniforms(torch.full((5,), 1 - 1e-9, dtype=torch.float64)))
    assert last.tokens.tolist() == [max(500, each) for each in highest]
    # The last of the ties below id 500, just before the better logit.
    counts = [2, 400, 150, 5, 0]
    before = [count / (count + math.e + (1 if row == 1 else 0)) for row, count in enumerate(counts)]
    uniforms = torch.tensor(before, dtype=torch.float64) - 2e-4
    found = masked_sample(logits, masks, shape_of(options), Uniforms(uniforms.clamp(min=0)))
    assert found.tokens.tolist() == [101, 499, 249, 104, 500]


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
def test_rows_without_a_token_and_with_one() -> None:
    logits = torch.full((6, 200), -3.0e38)
    logits[1, 150] = -math.inf
    logits[3] = math.nan
    allowed = torch.zeros(6, 200, dtype=torch.bool)
    allowed[[1, 2, 5], 150] = True
    allowed[4] = True
    masks = MaskRows.of_bitmask(bitmask_of(allowed), 200)
    for chance in (Noise.of(1, 6), Uniforms(torch.full((6,), 0.999, dtype=torch.float64))):
        for option in (Options(), Options(top_k=2, top_p=0.6, min_p=0.1)):
            options = [*[option] * 5, Options(1e-30)]
            choice = masked_sample(logits, masks, shape_of(options), chance)
            assert choice.status.tolist() == [EMPTY, MASSLESS, CHOSEN, NON_FINITE, CHOSEN, CHOSEN]
            assert choice.tokens[[0, 1, 2, 3, 5]].tolist() == [-1, -1, 150, -1, 150]
            assert 0 <= int(choice.tokens[4]) < (200 if option == Options() else 2)
            assert not any(field.isnan().any() for field in (choice.log_p, choice.log_z, choice.log_mass))
            with pytest.raises(NonFiniteLogitsError):
                choice.check()


def test_the_kernel_finds_in_a_row_what_it_finds_in_it_alone() -> None:
    case = mask_case(3, 2500, seed=3, possible=True)
    logits = torch.randn(3, 2500, generator=torch.Generator().manual_seed(1))
    shape, noise = shape_of([Options(), Options(0.7), Options(0.9, 50, 0.9, 0.01)]), Noise.of(5, 3)

    def part(row: int) -> Choice:
        one = slice(row, row + 1)
        masks = MaskRows(case.masks.table, case.masks.codes[one].clone())
        held = Shape(shape.temperature[one], shape.top_k[one], shape.top_p[one], shape.min_p[one])
        return masked_sample(logits[one], masks, held, Noise(noise.seeds[one], noise.offsets[one]))

    with use_backend("triton"):
        together = masked_sample(logits, case.masks, shape, noise)
        for row in range(3):
            for one, other in zip(together.arguments(), part(row).arguments(), strict=True):
                assert torch.equal(one[row : row + 1], other)


@pytest.mark.parametrize(
    "chance", [Noise.of(0, 3), Uniforms(torch.zeros(3, dtype=torch.float64))], ids=["noise", "uniforms"]
)
def test_a_step_with_a_workspace_launches_two_kernels_and_does_nothing_else(chance: Noise | Uniforms) -> None:
    case, workspace, shape = mask_case(3, 5000, seed=0), Workspace(4, 5000, "cpu"), Shape.of(3)
    logits = torch.zeros(3, 5000)
    steps = []
    for top_k in (0, 3):
        shape.top_k.fill_(top_k)
        with recorded_step() as step:
            masked_sample(logits, case.masks, shape, chance, workspace=workspace)
        steps.append(step)
    assert [launch.kernel for launch in steps[0]] == ["chunk_summary_kernel", "masked_sample_kernel"]
    assert steps[0] == steps[1]


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    masks = MaskRows.everything(2, 33, torch.device("cpu"))
    good = {"logits": torch.zeros(2, 40), "masks": masks, "shape": Shape.of(2), "noise": Noise.of(0, 2)}
    wrong = [
        ({"logits": torch.zeros(2, 32)}, "logits"),
        ({"shape": Shape.of(3)}, "shape"),
        ({"shape": Shape.of(2, "meta")}, "shape"),
        ({"noise": Noise.of(0, 3)}, "noise"),
        ({"noise": Uniforms(torch.zeros(1, dtype=torch.float64))}, "noise"),
        ({"workspace": Workspace(1, 33, "cpu")}, "workspace"),
    ]
    for change, argument in wrong:
        with pytest.raises(KernelArgumentError) as caught:
            masked_sample(**(good | change))
        assert caught.value.argument == argument
    with pytest.raises(KernelArgumentError, match="top_k"):
        Shape(torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2), torch.ones(2))
    with pytest.raises(KernelArgumentError, match="values"):
        Uniforms(torch.zeros(2))


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    case = mask_case(2, 5000, seed=0, codes=1)
    masked_sample(torch.zeros(2, 5000), case.masks, Shape.of(2), Noise.of(0, 2))
    uniforms = Uniforms(torch.zeros(2, dtype=torch.float64))
    masked_sample(torch.zeros(2, 5000, dtype=torch.bfloat16), case.masks, Shape.of(2), uniforms)
    large = MaskRows.everything(2, 131_072, torch.device("cpu"))
    masked_sample(torch.zeros(2, 131_072, dtype=torch.bfloat16), large, Shape.of(2), Noise.of(0, 2))
