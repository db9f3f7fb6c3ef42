"""Tokens of classes: the first of the most probable ones, and samples by probability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from canvas_enumeration import chi_square_bound
from graph_capture import recorded_step
from kernel_token_classes import Distribution, fast_scans, hard_logits, partition
from structgen_kernels import _native
from structgen_kernels.canvases.class_choice import class_best, class_draw, uniform
from structgen_kernels.canvases.class_layout import ClassLayout
from structgen_kernels.canvases.class_scores import class_scores
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.philox import Noise

JUST_BELOW_1 = 1 - 2.0**-53


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_scans(monkeypatch)


def pairs(rows: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all pairs of a row and a class."""
    return torch.arange(rows).repeat_interleave(classes), torch.arange(classes, dtype=torch.int32).repeat(rows)


def is_right(distribution: Distribution, row: int, of: int, share: float, token: int, error: float = 2e-5) -> bool:
    """Whether a uniform number selects a token, up to rounding."""
    members, shares = distribution.shares(row, of)
    at = int(np.searchsorted(members, token))
    if at == len(members) or members[at] != token:
        return False
    before, after = shares[:at].sum(), shares[: at + 1].sum()
    return bool(before - error <= share < after + error)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("kind", "size", "dtype"),
    [
        ("one", 1, torch.float32),
        ("own", 31, torch.float16),
        ("even", 130, torch.bfloat16),
        ("skew", 33, torch.float32),
        ("skew", 300, torch.bfloat16),
    ],
    ids=str,
)
def test_the_best_token_is_the_first_that_has_the_maximum(kind: str, size: int, dtype: torch.dtype) -> None:
    of, classes = partition(kind, size)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(size, dtype, tail=3)[[3, 4]]
    rows, wanted = pairs(2, classes)

    found = class_best(logits, layout, class_scores(logits, layout), rows, wanted).tolist()

    for row, one, token in zip(rows.tolist(), wanted.tolist(), found, strict=True):
        members = np.flatnonzero(of == one)
        values = logits[row, :size].to(torch.float64).numpy()[members]
        assert token == (members[values.argmax()] if len(members) else -1)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("kind", "size", "dtype"),
    [
        ("one", 1, torch.float32),
        ("own", 31, torch.float16),
        ("even", 130, torch.bfloat16),
        ("skew", 300, torch.float32),
    ],
    ids=str,
)
def test_draws_follow_the_inverse_distribution_over_ids(kind: str, size: int, dtype: torch.dtype) -> None:
    of, classes = partition(kind, size)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(size, dtype, tail=3)[[2, 4]]
    distribution = Distribution.of(logits, of, classes, 0.8)
    rows, wanted = pairs(2, classes)
    shares = torch.rand(len(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    shares[::5] = 0
    shares[1::5] = JUST_BELOW_1

    found = class_draw(logits, layout, class_scores(logits, layout, scale=0.8), rows, wanted, shares).tolist()

    for row, one, share, token in zip(rows.tolist(), wanted.tolist(), shares.tolist(), found, strict=True):
        if (of == one).any():
            assert is_right(distribution, row, one, share, token), (row, one, share, token)
            if share in (0, JUST_BELOW_1):
                members, powers = distribution.shares(row, one)
                edge = members[0] if share == 0 else members[-1]
                assert token == edge or powers[members == edge][0] < 1e-6
        else:
            assert token == -1


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("depth", [0.0, 60.0, 70.0, 78.0, 200.0])
def test_draws_of_a_class_that_lies_low_are_by_its_shares(depth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From sums of segments, or from tokens read again in blocks; at the floor all tokens are equally likely."""
    monkeypatch.setattr("structgen_kernels.canvases.class_choice._MEMBERS", 128)
    size = 400
    of = (np.arange(size) % 7 == 0).astype(np.int32)
    logits = torch.full((1, size), -depth) - 15 * torch.rand(1, size, generator=torch.Generator().manual_seed(2))
    logits[0, 7::7][:2] += 10
    logits[0, 1] = 0
    distribution = Distribution.of(logits, of, 2)
    layout = ClassLayout.of(of, 2, block=64)
    scores = class_scores(logits, layout)
    for one, draws in ((0, 5), (1, 40)):
        shares = torch.linspace(0, JUST_BELOW_1, draws, dtype=torch.float64)
        asked = torch.full((draws,), one)
        found = class_draw(logits, layout, scores, torch.zeros_like(asked), asked, shares).tolist()
        assert all(is_right(distribution, 0, one, *sampled) for sampled in zip(shares.tolist(), found, strict=True))
        if one == 1 and depth == 200:
            assert len(set(found)) > 35


@pytest.mark.usefixtures("backend")
def test_draws_by_noise_are_those_by_its_uniform_numbers() -> None:
    of, classes = partition("even", 200)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(200, torch.float32)[:2]
    scores = class_scores(logits, layout)
    rows, wanted = (each[::5].contiguous() for each in pairs(2, classes))
    noise = Noise.of(-(2**63), len(rows), offset=2**40 + 1)
    shares = uniform(noise)
    assert ((shares >= 0) & (shares < 1)).all()
    assert len(shares.unique()) == len(shares)
    sampled = class_draw(logits, layout, scores, rows, wanted, noise)
    assert torch.equal(sampled, class_draw(logits, layout, scores, rows, wanted, shares))


def test_draws_by_noise_have_their_shares() -> None:
    """Chi-square at 1e-6; by the tests above, the kernel is the same function of the random numbers."""
    of, classes = partition("skew", 300)
    layout = ClassLayout.of(of, classes)
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(3)) * 1.5
    distribution = Distribution.of(logits, of, classes)
    scores = class_scores(logits, layout)
    draws = 20_000
    for one in (21, 3):
        asked = torch.full((draws,), one)
        found = class_draw(logits, layout, scores, torch.zeros_like(asked), asked, Noise.of(11, draws)).numpy()
        members, shares = distribution.shares(0, one)
        counts = np.array([(found == token).sum() for token in members])
        assert counts.sum() == draws
        common = shares * draws > 5
        observed = np.append(counts[common], counts[~common].sum())
        expected = np.append(shares[common], shares[~common].sum()) * draws
        observed, expected = observed[expected > 0], expected[expected > 0]
        assert ((observed - expected) ** 2 / expected).sum() < chi_square_bound(len(expected))


@pytest.mark.usefixtures("backend")
def test_the_kernels_have_their_shares() -> None:
    of = np.array([0, 1, 1, 0, 1, 0, 1], dtype=np.int32)
    layout = ClassLayout.of(of, 2)
    logits = torch.tensor([[0.0, 1.0, 0.0, 2.0, -1.0, 0.0, 0.5]])
    members, shares = Distribution.of(logits, of, 2).shares(0, 1)
    draws = 60
    asked = torch.ones(draws, dtype=torch.int32)
    noise = Noise.of(5, draws)
    found = class_draw(logits, layout, class_scores(logits, layout), torch.zeros_like(asked), asked, noise).numpy()
    expected = shares * draws
    observed = np.array([(found == token).sum() for token in members])
    assert observed.sum() == draws
    assert ((observed - expected) ** 2 / expected).sum() < chi_square_bound(len(members))


@pytest.mark.usefixtures("backend")
def test_what_cannot_be_chosen_is_minus_1() -> None:
    of, classes = partition("even", 60)
    layout = ClassLayout.of(of, classes)
    logits = hard_logits(60, torch.float32)[:4]
    logits[1, 3] = torch.nan
    logits[2] = -torch.inf
    logits[3, 3] = torch.inf
    scores = class_scores(logits, layout)
    rows, wanted = torch.tensor([0, 0, 0, 1, 2, 3, -1]), torch.tensor([2, -1, 0, 2, 2, 2, 2])
    assert (class_best(logits, layout, scores, rows, wanted) < 0).tolist() == [False, *[True] * 6]
    sampled = class_draw(logits, layout, scores, rows, wanted, Noise.of(0, 7))
    assert (sampled < 0).tolist() == [False, *[True] * 6]
    none = torch.zeros(0, dtype=torch.int64)
    assert class_best(logits, layout, scores, none, none).shape == (0,)


@pytest.mark.usefixtures("backend")
def test_a_choice_is_the_same_alone_and_among_others() -> None:
    of, classes = partition("skew", 260)
    layout = ClassLayout.of(of, classes, block=64)
    whole = torch.nn.functional.pad(hard_logits(260, torch.float16), (0, 4))[:, :-2]
    scores = class_scores(whole, layout)
    rows = torch.arange(7, dtype=torch.int32)
    wanted = torch.tensor([1, 2, 20, 21, 21, 21, 5])
    noise = Noise.of(3, 7)
    best, sampled = torch.full((7,), 9, dtype=torch.int32), torch.full((7,), 9, dtype=torch.int32)
    assert class_best(whole, layout, scores, rows, wanted, out=best) is best
    assert class_draw(whole, layout, scores, rows, wanted, noise, out=sampled) is sampled
    for row in range(7):
        logits = whole[row : row + 1].clone()
        alone = class_scores(logits, layout)
        one = Noise(noise.seeds[row : row + 1], noise.offsets[row : row + 1])
        zero, of_row = torch.zeros(1, dtype=torch.int64), wanted[row : row + 1]
        assert class_best(logits, layout, alone, zero, of_row).item() == best[row]
        assert class_draw(logits, layout, alone, zero, of_row, one).item() == sampled[row]


@pytest.mark.usefixtures("backend")
def test_choices_agree_with_the_pass_of_the_host() -> None:
    of, classes = partition("skew", 600)
    logits = hard_logits(600, torch.float32)[1:3]
    host = _native.ClassLayout(of, classes)
    largest = logits.amax(1).numpy()
    sums, by_chunk, _, maxima = host.sums(logits.numpy(), 1.0, largest, with_maxima=True)
    rows, wanted = pairs(2, classes)
    keep = torch.from_numpy(np.bincount(of, minlength=classes) > 0)[wanted.to(torch.int64)]
    rows, wanted = rows[keep], wanted[keep]
    shares = torch.rand(len(rows), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert maxima is not None
    layout = ClassLayout.of(of, classes, block=256)
    scores = class_scores(logits, layout)

    values = maxima[rows.numpy(), wanted.numpy()]
    best = host.find(logits.numpy(), rows.numpy(), wanted.numpy(), values)
    assert np.array_equal(class_best(logits, layout, scores, rows, wanted).numpy(), best)
    sampled = host.draw(logits.numpy(), 1.0, largest, sums, by_chunk, rows.numpy(), wanted.numpy(), shares.numpy())
    found = class_draw(logits, layout, scores, rows, wanted, shares).numpy()
    assert (found == sampled).mean() > 0.98  # but where a uniform number lies within rounding of a step


def test_a_step_launches_one_kernel_a_choice_and_nothing_else() -> None:
    of, classes = partition("skew", 300)
    layout = ClassLayout.of(of, classes)
    logits = hard_logits(300, torch.float32)
    scores = class_scores(logits, layout)
    rows, noise = torch.arange(7), Noise.of(1, 7)
    buffer = torch.zeros(7, dtype=torch.int32)
    with recorded_step() as seen:
        class_best(logits, layout, scores, rows, rows, out=buffer)
        class_draw(logits, layout, scores, rows, rows, noise, out=buffer)
    assert [launch.kernel for launch in seen] == ["class_best_kernel", "class_draw_kernel"]


def test_wrong_arguments_are_found_before_anything_runs() -> None:
    of, classes = partition("even", 40)
    layout = ClassLayout.of(of, classes)
    logits = torch.zeros(2, 40)
    scores = class_scores(logits, layout)
    rows = torch.zeros(3, dtype=torch.int64)
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("logits", (torch.zeros(2, 39), layout, scores, rows, rows), {}),
        ("scores", (torch.zeros(3, 40), layout, scores, rows, rows), {}),
        ("rows", (logits, layout, scores, rows.to(torch.float32), rows), {}),
        ("classes", (logits, layout, scores, rows, rows[:2]), {}),
        ("out", (logits, layout, scores, rows, rows), {"out": rows}),
    ]
    for argument, given, named in cases:
        with pytest.raises(KernelArgumentError, match=f"'class_best': {argument} "):
            class_best(*given, **named)
        with pytest.raises(KernelArgumentError, match=f"'class_draw': {argument} "):
            class_draw(*given, Noise.of(0, 3), **named)
    for uniforms in (Noise.of(0, 2), torch.zeros(2, dtype=torch.float64), torch.zeros(3)):
        with pytest.raises(KernelArgumentError, match="'class_draw': uniforms must"):
            class_draw(logits, layout, scores, rows, rows, uniforms)
    with use_backend("torch"), pytest.raises(KernelArgumentError, match="'class_best': scores must"):
        class_best(logits, ClassLayout.of(of, classes + 1), scores, rows, rows)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    layout = ClassLayout.of((np.arange(131_072) % 150 // 3).astype(np.int32), 51)
    rows, wanted = torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        logits = torch.zeros(2, 131_072, dtype=dtype)
        scores = class_scores(logits, layout)
        class_best(logits, layout, scores, rows, wanted)
        class_draw(logits, layout, scores, rows, wanted, Noise.of(0, 2))
        class_draw(logits, layout, scores, rows, wanted, torch.zeros(2, dtype=torch.float64))
