"""Scores of token classes: native passes against those of numpy, draws, and bad rows."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from canvas_enumeration import chi_square_bound
from structgen_kernels import _native

from structgen.decode.diffusion import mean_field as host_logits
from structgen.decode.diffusion.class_posterior import ClassScores
from structgen.decode.diffusion.mean_field import FREE, LOWEST, MeanField
from structgen.errors import GenerationError
from structgen.models.protocol.diffusion import TokenClasses


@pytest.fixture(autouse=True)
def _native_passes_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_logits, "_SMALL", 1)


SIZES = [1, 2, 255, 256, 257, 2047, 2048, 2049, 5000, 33_000]


def free(slots: int) -> np.ndarray:
    return np.full(slots, FREE, dtype=np.int32)


def logits_of(size: int, seed: int) -> np.ndarray:
    """Rows with some minus infinities and equal logits."""
    rng = np.random.default_rng(seed)
    rows = 14
    logits = (rng.normal(size=(rows, size)) * rng.choice([0.1, 3, 40], size=(rows, 1))).astype(np.float32)
    if size > 2:
        logits[1, rng.random(size) < 0.5] = -np.inf
        logits[2] = np.round(logits[2])
    logits[:, 0] = np.where(np.isfinite(logits[:, 0]), logits[:, 0], 0)
    return logits


def classes_of(size: int, seed: int, skew: float) -> tuple[np.ndarray, int]:
    """Class of each token: most tokens in one class, or evenly; the last class is empty."""
    rng = np.random.default_rng(seed)
    classes = min(size, 40)
    of = np.where(rng.random(size) < skew, classes // 2, rng.integers(0, classes, size))
    return of.astype(np.int32), classes + 1


def both(logits: np.ndarray, of: np.ndarray, classes: int, temperature: float = 1.0) -> tuple[ClassScores, ClassScores]:
    """Scores of native passes, and of numpy in double precision."""
    fast = MeanField(free(len(logits)), logits, temperature=temperature)
    slow = MeanField(free(len(logits)), logits.astype(np.float64), temperature=temperature)
    assert isinstance(fast.slot_logits, host_logits.HostLogits)
    assert isinstance(slow.slot_logits, host_logits.HostLogits)
    assert fast.slot_logits.is_native
    assert not slow.slot_logits.is_native
    partition = TokenClasses(of, classes)
    return ClassScores(fast, partition), ClassScores(slow, partition)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("skew", "temperature"), [(0.9, 1.0), (0.0, 0.3), (0.5, 4.0)])
def test_native_passes_equal_those_of_numpy(size: int, skew: float, temperature: float) -> None:
    """Maxima, sums and sums of p log p agree to the rounding of float32; the first of equal best tokens, exactly."""
    logits, (of, classes) = logits_of(size, size), classes_of(size, size + 1, skew)
    native, plain = both(logits, of, classes, temperature)
    present = np.flatnonzero(np.bincount(of, minlength=classes))
    assert native.maxima()[:, present] == pytest.approx(plain.maxima()[:, present], rel=1e-6, abs=2e-6)
    assert native.log_sums()[:, present] == pytest.approx(plain.log_sums()[:, present], rel=1e-6, abs=2e-6)
    assert native.mean_logs()[:, present] == pytest.approx(plain.mean_logs()[:, present], rel=2e-5, abs=1e-6)
    assert native.distribution.log_norms() == pytest.approx(plain.distribution.log_norms(), abs=2e-6)
    for scores in (native, plain):
        assert np.all(scores.maxima()[:, -1] == -np.inf)  # the class without tokens
        assert np.all(scores.log_sums()[:, -1] == -np.inf)
        assert np.all(scores.mean_logs()[:, -1] == 0)
    rows, columns = np.divmod(np.arange(min(100, len(logits) * len(present))), len(present))
    wanted = []
    for row, one in zip(rows, present[columns], strict=True):
        members = np.flatnonzero(of == one)
        wanted.append(members[np.flatnonzero(logits[row, members] == logits[row, members].max())[0]])
    for scores in (native, plain):
        assert scores.best(rows, present[columns].astype(np.int32)).tolist() == wanted


def test_passes_agree_in_whatever_order_they_are_asked_for() -> None:
    """Sums that are computed together with maxima equal those computed alone."""
    logits, (of, classes) = logits_of(5000, 3), classes_of(5000, 4, 0.7)
    first, second = both(logits, of, classes)[0], both(logits, of, classes)[0]
    sums, maxima = first.log_sums(), second.maxima()
    assert np.array_equal(sums, second.log_sums())
    assert np.array_equal(maxima, first.maxima())


def test_norms_are_those_of_a_softmax() -> None:
    """Norms do not depend on what was asked before; for single tokens and whole slots."""
    logits, (of, classes) = logits_of(5000, 5), classes_of(5000, 6, 0.7)
    for temperature in (1.0, 0.5):
        wanted = np.maximum((logits.astype(np.float64) - logits.max(axis=1, keepdims=True)) / temperature, LOWEST)
        wanted = wanted - np.log(np.exp(wanted).sum(axis=1, keepdims=True))
        for dtype in (np.float32, np.float64):
            alone = MeanField(free(14), logits.astype(dtype), temperature=temperature)
            asked = MeanField(free(14), logits.astype(dtype), temperature=temperature)
            ClassScores(asked, TokenClasses(of, classes)).log_sums()
            for distribution in (alone, asked):
                tokens = np.arange(14, dtype=np.int32) * 300
                assert distribution.log_prob_of(tokens) == pytest.approx(wanted[np.arange(14), tokens], abs=2e-6)
                assert distribution.log_probs(9) == pytest.approx(wanted[9], abs=2e-6)


@pytest.mark.parametrize("is_native", [True, False])
def test_tokens_are_sampled_by_their_share(is_native: bool) -> None:
    """Draws within large and small classes pass chi-square with alpha 1e-6 over 8,000 draws each."""
    size = 6000
    rng = np.random.default_rng(11)
    of = np.where(rng.random(size) < 0.02, 1, 2).astype(np.int32)
    logits = np.full((12, size), -30, dtype=np.float32)
    of[:100:2] = 1
    of[1:101:2] = 2
    spread = rng.choice(size, 30, replace=False)
    logits[5, :12] = np.linspace(-2, 1, 12)
    logits[5, spread] = 0.5  # some far from the start
    native, plain = both(logits, of, 3)
    scores = native if is_native else plain
    for one in (1, 2):
        uniform = np.random.default_rng(one).random(8_000)
        rows = np.full(8_000, 5, dtype=np.int64)
        found = scores.draw(rows, np.full(8_000, one, dtype=np.int32), uniform)
        assert np.all(of[found] == one)
        members = np.flatnonzero((of == one) & (logits[5] > -30))
        distribution = np.exp(logits[5, members].astype(np.float64))
        expected = 8_000 * distribution / distribution.sum()
        counts = np.array([(found == token).sum() for token in members])
        assert counts.sum() >= 8_000 - 1  # the others have a share of 1e-9
        assert ((counts - expected) ** 2 / expected).sum() < chi_square_bound(len(members))
        even = np.full(len(members), 8_000 / len(members))  # a control
        assert ((counts - even) ** 2 / even).sum() > chi_square_bound(len(members))


@pytest.mark.parametrize("size", [1, 257, 2048, 5000])
def test_draws_at_the_ends_of_the_unit_interval(size: int) -> None:
    """0 gives the first token of a class, and the largest number below 1 its last token with positive probability."""
    of, classes = classes_of(size, size, 0.8)
    logits = logits_of(size, size + 2)
    native, plain = both(np.zeros_like(logits), of, classes)
    for one in np.flatnonzero(np.bincount(of, minlength=classes)).tolist():
        members = np.flatnonzero(of == one)
        rows, classes_wanted = np.zeros(2, dtype=np.int64), np.full(2, one, dtype=np.int32)
        uniform = np.array([0.0, np.nextafter(1.0, 0.0)])
        for scores in (native, plain):
            assert scores.draw(rows, classes_wanted, uniform).tolist() == [members[0], members[-1]]


def test_distributions_so_steep_or_flat_that_scales_overflow() -> None:
    """A temperature of 1e-300 leaves only the largest logit, one of 1e300 makes all equal."""
    logits, (of, classes) = logits_of(5000, 8), classes_of(5000, 9, 0.5)
    for temperature, span in ((1e-300, -LOWEST), (1e300, 0.0)):
        native, plain = both(logits[[0, 2] * 7], of, classes, temperature)
        for scores in (native, plain):
            known = scores.maxima()[:, :-1]
            assert np.isfinite(known).all()
            assert known.max(axis=1) - known.min(axis=1) == pytest.approx(np.full(14, span), abs=1e-6)


# rows that are no distribution


@pytest.mark.parametrize("size", [4, 70_000])
@pytest.mark.parametrize(
    ("wrong", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")], ids=["NaN", "infinity", "nothing finite"]
)
def test_rows_that_make_no_distribution_are_refused_by_their_slot(size: int, wrong: float, shown: str) -> None:
    canvas = np.array([FREE, 0, FREE, FREE], dtype=np.int32)
    logits = np.zeros((3, size), dtype=np.float32)
    logits[1] = -np.inf if wrong == -np.inf else logits[1]
    logits[1, 2] = wrong
    with pytest.raises(
        GenerationError, match=rf"slot 2: its logits are no distribution.*maximum is {re.escape(shown)}"
    ):
        MeanField(canvas, logits)


@pytest.mark.parametrize("shape", [(2, 5), (4, 5), (3,), (0, 5)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GenerationError, match="one logits row for each of 3 free slots"):
        MeanField(free(3), np.zeros(shape))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperatures_that_are_none_are_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive and finite"):
        MeanField(free(1), np.zeros((1, 3)), temperature=temperature)


@pytest.mark.parametrize("size", [3, 70_000])
def test_zeros_of_half_precision_count_as_little_and_not_as_nothing(size: int) -> None:
    """A softmax of float16 rounds 1e-9 to 0; such a token counts as one of exp(LOWEST)."""
    shares = np.zeros((2, size), dtype=np.float16)
    shares[:, 1] = 1
    with np.errstate(divide="ignore"):
        logits = np.log(shares).astype(np.float32)
    distribution = MeanField(free(2), logits)
    scores = ClassScores(distribution, TokenClasses(np.minimum(np.arange(size), 2).astype(np.int32), 3))
    rest = LOWEST + math.log(size - 2)
    assert scores.maxima()[1] == pytest.approx([LOWEST, 0.0, LOWEST], rel=1e-6, abs=1e-6)
    assert scores.log_sums()[1] == pytest.approx([LOWEST, 0.0, rest], rel=1e-6, abs=1e-6)
    assert scores.best(np.zeros(2, dtype=np.int64), np.array([0, 2], dtype=np.int32)).tolist() == [0, 2]
    uniform = np.array([0.0, 0.999])
    sampled = scores.draw(np.zeros(2, dtype=np.int64), np.full(2, 2, dtype=np.int32), uniform)
    assert sampled.tolist() == [2, 2 + int(0.999 * (size - 2))]


# the native module on its own


def test_native_sums_take_any_numbers() -> None:
    """Rows of NaN and infinities, which no distribution has, give numbers and no crash."""
    logits = np.array([[np.nan, np.inf, -np.inf, 0, 3e38, -3e38]] * 3, dtype=np.float32)
    layout = _native.ClassLayout(np.array([0, 1, 1, 0, 2, 2], dtype=np.int32), 4)
    largest = np.array([0, np.inf, np.nan], dtype=np.float32)
    sums, by_chunk, moments, maxima = layout.sums(logits, 1.0, largest, with_moments=True, with_maxima=True)
    assert moments is not None
    assert maxima is not None
    assert np.isfinite(sums).all()
    assert np.isfinite(moments).all()
    rows, wanted = np.arange(3, dtype=np.int64), np.array([0, 1, 3], dtype=np.int32)
    sampled = layout.draw(logits, 1.0, largest, sums, by_chunk, rows, wanted, np.full(3, 0.5))
    assert sampled[2] == -1  # the class without tokens
    assert layout.find(logits, rows, wanted, np.zeros(3, dtype=np.float32)).tolist() == [3, -1, -1]
    assert np.isnan(_native.row_maxima(logits)).all()
    assert _native.row_maxima(np.zeros((2, 0), dtype=np.float32)).tolist() == [-np.inf, -np.inf]


def test_native_arguments_that_do_not_fit_are_refused() -> None:
    of = np.array([0, 1, 1], dtype=np.int32)
    logits, largest = np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.float32)
    layout = _native.ClassLayout(of, 2)
    sums, by_chunk, _, _ = layout.sums(logits, 1.0, largest)
    rows, classes, uniform = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32), np.zeros(1)
    for bad in (np.array([0, 2, 1]), np.array([0, -1, 1])):
        with pytest.raises(ValueError, match="a class is out of range"):
            _native.ClassLayout(bad.astype(np.int32), 2)
    with pytest.raises(ValueError, match="a class is out of range"):
        _native.ClassLayout(np.zeros(0, dtype=np.int32), 0)
    with pytest.raises(ValueError, match="one column for each token"):
        layout.maxima(np.zeros((2, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="one largest logit for each row"):
        layout.sums(logits, 1.0, largest[:1])
    for row, one in ((2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError, match="out of range"):
            layout.draw(logits, 1.0, largest, sums, by_chunk, rows + row, classes + np.int32(one), uniform)
    with pytest.raises(ValueError, match="a row, a class and a number"):
        layout.draw(logits, 1.0, largest, sums, by_chunk, rows, classes, np.zeros(2))
    with pytest.raises(ValueError, match="not those of these logits"):
        layout.draw(logits, 1.0, largest, sums[:1], by_chunk, rows, classes, uniform)
