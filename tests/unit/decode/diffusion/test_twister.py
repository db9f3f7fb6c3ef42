"""TWISTER: the distribution of weighted trajectories is the model's own on the language.

The tests are exact and in floating point.
"""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canvas_enumeration import chi_square, chi_square_bound
from exact_randomness import Chances, outcomes
from numpy.typing import NDArray
from toy_canvases import MASK, VOCABULARY, ToyCanvases

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.context_free.language import ContextFreeLanguage
from structgen.decode.diffusion.entry import fill_smc
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, Completion
from structgen.decode.diffusion.trajectory import FixedOrder, LeftToRight, RandomOrder, RevealOrder, Twister, TwisterRun
from structgen.decode.sampling.smc import SMC
from structgen.engine import Vocabulary, compile
from structgen.errors import BudgetError, GenerationError
from structgen.grammar.nodes import SpecialToken, sequence
from structgen.models.diffusion import HashDiffusion, HiddenMarkovDiffusion

Tokens = tuple[int, ...]
Distribution = Mapping[int, Fraction]
EOS, A, B = 0, 1, 2
SIZE = VOCABULARY.size


class TableDenoiser:
    """Distributions in exact fractions, each sampled when it is first asked for.

    Tokens outside the alphabet have probability zero.
    """

    def __init__(
        self, seed: int, alphabet: Sequence[int], given: Mapping[tuple[Tokens, int], Distribution] | None = None
    ) -> None:
        self._seed = seed
        self._alphabet = alphabet
        self._distributions = dict(given or {})
        self.forwards = 0
        self.rows = 0

    def distribution(self, canvas: Sequence[int], slot: int) -> Distribution:
        key = tuple(canvas), slot
        if key not in self._distributions:
            rng = random.Random(f"{self._seed} {key}")
            weights = [rng.randint(1, 5) for _ in self._alphabet]
            self._distributions[key] = {
                token: Fraction(weight, sum(weights)) for token, weight in zip(self._alphabet, weights, strict=True)
            }
        return self._distributions[key]

    def denoise(self, canvases: NDArray[np.int32], /, *, start: int = 0, stop: int | None = None) -> Any:
        self.forwards += 1
        self.rows += len(canvases)
        logits = np.full((*canvases.shape, SIZE), -np.inf)
        for row, canvas in enumerate(np.where(canvases == MASK, FREE, canvases).tolist()):
            for slot in range(len(canvas)):
                for token, share in self.distribution(canvas, slot).items():
                    logits[row, slot, token] = math.log(share)
        return logits[:, start:stop]

    def close(self) -> None:
        pass


class Exact:
    """The native chain, the step-exact chain and its weights, by their definitions, in fractions."""

    def __init__(self, denoiser: TableDenoiser, members: Sequence[Tokens], reveals: Sequence[Tokens]) -> None:
        self.denoiser = denoiser
        self.members = list(members)
        self.reveals = reveals

    def mass(self, canvas: Tokens, asked: Tokens) -> Fraction:
        """``Z(canvas; asked)``."""
        return sum((self.weight(member, canvas, asked) for member in self.completions(canvas)), Fraction(0))

    def completions(self, canvas: Tokens) -> Iterator[Tokens]:
        for member in self.members:
            if all(held in (FREE, token) for held, token in zip(canvas, member, strict=True)):
                yield member

    def weight(self, member: Tokens, canvas: Tokens, asked: Tokens) -> Fraction:
        distributions = [self.denoiser.distribution(asked, slot) for slot, held in enumerate(canvas) if held == FREE]
        tokens = [token for held, token in zip(canvas, member, strict=True) if held == FREE]
        return math.prod(
            (distribution.get(token, Fraction(0)) for distribution, token in zip(distributions, tokens, strict=True)),
            start=Fraction(1),
        )

    def paths(self, first: Tokens) -> Iterator[tuple[list[Tokens], Fraction, Fraction, Fraction]]:
        """Every trajectory to a string: its canvases, native and step-exact probability, and weight."""
        paths = [([first], Fraction(1), Fraction(1), self.mass(first, first))]
        for at, reveal in enumerate(self.reveals):
            grown = []
            for canvases, native, step, weight in paths:
                x = canvases[-1]
                for tokens in product(self.denoiser.distribution(x, reveal[0]), repeat=len(reveal)):
                    held = dict(zip(reveal, tokens, strict=True))
                    y = tuple(held.get(slot, token) for slot, token in enumerate(x))
                    owed = self.mass(y, x)
                    if not owed:
                        continue
                    own = math.prod(
                        (self.denoiser.distribution(x, slot)[held[slot]] for slot in reveal), start=Fraction(1)
                    )
                    gain = self.mass(y, y) / owed if at + 1 < len(self.reveals) else Fraction(1)
                    grown.append(([*canvases, y], native * own, step * own * owed / self.mass(x, x), weight * gain))
            paths = grown
        return iter(paths)


def distribution_of(paths: Iterator[tuple[list[Tokens], Fraction]]) -> dict[Tokens, Fraction]:
    found: dict[Tokens, Fraction] = defaultdict(Fraction)
    for canvases, mass in paths:
        found[canvases[-1]] += mass
    return dict(found)


class ScriptedDraws:
    """A language with real posteriors, whose draws follow a script that enumerates all outcomes.

    The draws fix the slots revealed next; the rest is the first completion that agrees, which is never used.
    """

    def __init__(self, language: CanvasLanguage, exact: Exact, chances: Chances) -> None:
        self._language = language
        self.exact = exact
        self.chances = chances
        self.shortest = language.shortest
        self.vocabulary = language.vocabulary

    def completable(self, canvas: Canvas) -> bool:
        return self._language.completable(canvas)

    def posterior(self, distribution: MeanField, *, tail: str) -> Any:
        assert tail == "scored"
        return _ScriptedPosterior(
            self, self._language.posterior(distribution, tail="scored"), tuple(distribution.canvas.tolist())
        )


class _ScriptedPosterior:
    def __init__(self, of: ScriptedDraws, posterior: Any, canvas: Tokens) -> None:
        self._of = of
        self._canvas = canvas
        self.log_z = posterior.log_z
        self.clamped = posterior.clamped

    def draw(self, generator: np.random.Generator) -> Completion:
        exact = self._of.exact
        next_ = next(reveal for reveal in exact.reveals if self._canvas[reveal[0]] == FREE)
        members = sorted(exact.completions(self._canvas))
        values = sorted({tuple(member[slot] for slot in next_) for member in members})
        shares = [
            sum(
                (
                    exact.weight(member, self._canvas, self._canvas)
                    for member in members
                    if tuple(member[slot] for slot in next_) == value
                ),
                Fraction(0),
            )
            for value in values
        ]
        value = values[self._of.chances.choose(shares)]
        member = next(member for member in members if tuple(member[slot] for slot in next_) == value)
        return Completion(np.array(member, dtype=np.int32), 0.0)


def a_language(members: Sequence[Tokens]) -> CanvasLanguage:
    """The real language of some canvases, with EOS tails."""
    texts = sorted({VOCABULARY.decode([token for token in member if token]).decode() for member in members})
    return canvas_language(compile(sg.select(texts), VOCABULARY))


def random_case(seed: int) -> tuple[TableDenoiser, list[Tokens], list[Tokens]]:
    """Two tokens, three slots; in every third case texts may be shorter, in every fourth a step reveals two slots."""
    rng = random.Random(seed)
    alphabet = (EOS, A, B) if seed % 3 == 0 else (A, B)
    canvases = [
        tokens
        for tokens in product(alphabet, repeat=3)
        if all(after == EOS for before, after in pairwise(tokens) if before == EOS)
    ]
    members = [tokens for tokens in canvases if rng.random() < 0.5] or [rng.choice(canvases)]
    slots = rng.sample(range(3), 3)
    reveals = [tuple(slots[:2]), (slots[2],)] if seed % 4 == 0 else [(slot,) for slot in slots]
    return TableDenoiser(seed, alphabet), members, reveals


def test_weighted_trajectories_have_the_native_distribution_exactly() -> None:
    """On 60 random denoisers and languages, every path of the real code agrees with the definition in fractions.

    The weights of the definition make the native distribution on the language of the step-exact one, exactly; those of
    the code are the same on every path, to 1e-11; without weights the distribution differs by 13 percent on average.
    """
    distances = []
    for seed in range(60):
        denoiser, members, reveals = random_case(seed)
        exact = Exact(denoiser, members, reveals)
        first = (FREE,) * 3
        paths = list(exact.paths(first))
        native = distribution_of((canvases, own) for canvases, own, _, _ in paths)
        assert distribution_of((canvases, step * weight) for canvases, _, step, weight in paths) == native
        unweighted = distribution_of((canvases, step) for canvases, _, step, _ in paths)
        assert sum(unweighted.values()) == 1
        total = sum(native.values())
        distances.append(sum(abs(unweighted[end] - native[end] / total) for end in native) / 2)

        wanted = {tuple(canvases[-1]): (step, weight) for canvases, _, step, weight in paths}  # an end has one path
        language = a_language(members)

        def run(
            chances: Chances, language: CanvasLanguage = language, exact: Exact = exact, reveals: Any = reveals
        ) -> tuple[Tokens, float]:
            order = FixedOrder(tuple(slot for reveal in reveals for slot in reveal), len(reveals[0]))
            scripted: Any = ScriptedDraws(language, exact, chances)
            sampler = SMC(1, ess_threshold=0)
            done = Twister(exact.denoiser, MASK, scripted, sampler, order).run(
                np.full(3, FREE, dtype=np.int32), np.random.default_rng(0)
            )
            (particle,) = done.particles
            assert done.log_evidence == particle.log_weight
            assert particle.steps == tuple(reveals)
            own = math.exp(particle.log_model.sum())
            assert math.exp(particle.log_kernel.sum()) == pytest.approx(float(chances.probability), rel=1e-11)
            end = tuple(particle.canvas.tolist())
            assert own == pytest.approx(float(native_path(exact, end)), rel=1e-11)
            return end, math.exp(particle.log_weight)

        found = {end: (probability, weight) for probability, (end, weight) in outcomes(run)}
        assert found.keys() == wanted.keys()
        for end, (probability, weight) in found.items():
            assert probability == wanted[end][0]
            assert weight == pytest.approx(float(wanted[end][1]), rel=1e-11)
    assert sum(distances) / len(distances) > Fraction(1, 20)
    assert sum(distance > 0 for distance in distances) > 40


def native_path(exact: Exact, end: Tokens) -> Fraction:
    """The native chain's probability of the only trajectory to a canvas."""
    canvas, probability = [FREE] * len(end), Fraction(1)
    for reveal in exact.reveals:
        distributions = [exact.denoiser.distribution(canvas, slot) for slot in reveal]
        for slot, distribution in zip(reveal, distributions, strict=True):
            probability *= distribution[end[slot]]
            canvas[slot] = end[slot]
    return probability


def test_filling_what_is_forced_outside_the_order_would_change_the_distribution() -> None:
    """With exact weights it has the distribution of another chain.

    In that chain passes see tokens that they would not have seen.
    """
    changed = 0
    for seed in range(60):
        denoiser, members, _ = random_case(seed)
        exact = Exact(denoiser, members, [(0,), (1,), (2,)])
        native = distribution_of((canvases, own) for canvases, own, _, _ in exact.paths((FREE,) * 3))
        filled: dict[Tokens, Fraction] = defaultdict(Fraction)
        growing: list[tuple[Tokens, Fraction]] = [((FREE,) * 3, Fraction(1))]
        while growing:
            x, mass = growing.pop()
            if FREE not in x:
                filled[x] += mass
                continue
            slot = x.index(FREE)
            for token in denoiser.distribution(x, slot):
                left = list(exact.completions((*x[:slot], token, *x[slot + 1 :])))
                if not left:
                    continue
                columns = [set(column) for column in zip(*left, strict=True)]
                y = tuple(left[0][at] if len(column) == 1 else FREE for at, column in enumerate(columns))
                new = [at for at in range(3) if x[at] == FREE != y[at]]
                growing.append(
                    (y, mass * math.prod((denoiser.distribution(x, at)[y[at]] for at in new), start=Fraction(1)))
                )
        assert filled.keys() == native.keys()
        changed += dict(filled) != native
    assert changed > 30


def test_the_published_vector(shared_data: Path) -> None:
    """Fig. 2, a*b+ with b in the last slot: the first step reveals what it should."""
    case = json.loads((shared_data / "vectors.json").read_text(encoding="utf-8"))["twister_fig2"]
    assert case["language"] == "a*b+"
    first = (FREE, FREE, B)
    half = Fraction(1, 2)
    given = {
        (first, 0): {A: half, B: half},
        (first, 1): {A: half, B: half},
        ((FREE, A, B), 0): {A: Fraction(case["Cat_pos0(a | x=(M,a,b))"]), B: Fraction(1, 10)},
    }
    members = [(A, A, B), (A, B, B), (B, B, B)]
    order = [(slot,) for slot in case["reveal_order"]]
    exact = Exact(TableDenoiser(0, (A, B), given), members, order)
    step, weighted = Fraction(0), defaultdict[int, float](float)
    language = canvas_language(compile(sg.regex(case["language"]), VOCABULARY))

    def run(chances: Chances) -> tuple[int, float]:
        scripted: Any = ScriptedDraws(language, exact, chances)
        slots = FixedOrder(tuple(slot for (slot,) in order))
        done = Twister(exact.denoiser, MASK, scripted, SMC(1, ess_threshold=0), slots).run(
            np.array(first, dtype=np.int32), np.random.default_rng(0)
        )
        return int(done.particles[0].canvas[1]), math.exp(done.log_evidence)

    for probability, (token, weight) in outcomes(run):
        step += probability * (token == A)
        weighted[token] += float(probability) * weight
    assert step == Fraction(case["step_exact_P(choose a at pos1)"]) == Fraction(1, 3)
    assert weighted[A] / sum(weighted.values()) == pytest.approx(float(Fraction(case["doob_P(choose a at pos1)"])))
    assert Fraction(case["doob_P(choose a at pos1)"]) == Fraction(9, 19)


# in floating point, with many particles


def hidden_markov(seed: int) -> HiddenMarkovDiffusion:
    """Three states over EOS, a, b, ab and 1, whose native chain has the model's joint distribution in any order."""
    rng = np.random.default_rng(seed)
    emission = np.zeros((3, SIZE))
    emission[:, [0, 1, 2, 3, 4]] = rng.dirichlet(np.full(5, 0.35), size=3)
    return HiddenMarkovDiffusion(
        VOCABULARY, rng.dirichlet(np.ones(3)), rng.dirichlet(np.full(3, 0.25), size=3), emission
    )


def joint(model: HiddenMarkovDiffusion, tokens: Tokens) -> float:
    """The sum over hidden paths, by the definition."""
    state = model.initial * model.emission[:, tokens[0]]
    for token in tokens[1:]:
        state = (state @ model.transition) * model.emission[:, token]
    return float(state.sum())


def particles(
    denoiser: Any, language: CanvasLanguage, slots: int, sampler: SMC, order: RevealOrder, seed: int
) -> TwisterRun:
    twister = Twister(denoiser, MASK, language, sampler, order)
    return twister.run(np.full(slots, FREE, dtype=np.int32), np.random.default_rng(seed))


def largest_z(weights: NDArray[np.float64], ends: list[Tokens], target: Mapping[Tokens, float]) -> float:
    """The largest z-score of the mean weight of each string; rarely reached strings are pooled."""
    assert set(ends) <= set(target)
    rare = {member for member in target if sum(end == member for end in ends) < 25}
    cells: dict[Tokens, float] = defaultdict(float)
    for member, mass in target.items():
        cells[() if member in rare else member] += mass
    cells[(-2,)] = sum(target.values())
    scores = []
    for cell, mass in cells.items():
        inside = np.array([cell == (-2,) or cell == (() if end in rare else end) for end in ends])  # noqa: PLR1714
        values = weights * inside
        if np.ptp(values):  # without weights the pooled sum has no spread
            scores.append(abs(values.mean() - mass) / (values.std() / math.sqrt(len(values))))
    return float(max(scores))


# Two-sided 1e-6, divided by at most 60 cells.
LARGEST_Z = 5.7


DECEIVING = "(a(a|b)*1|b+)"
"""Prefixes promise more, or less, than later passes keep of it."""


@pytest.mark.parametrize("order", [RandomOrder(), LeftToRight(), FixedOrder((2, 0, 3, 1))])
def test_draws_have_the_true_posterior_of_a_hidden_markov_model(order: RevealOrder) -> None:
    """For 800 independent particles each string's mean weight is its joint probability; without weights it is not."""
    model, toy = hidden_markov(3), ToyCanvases(DECEIVING, 4)
    language = canvas_language(compile(sg.regex(DECEIVING), VOCABULARY))
    target = {member: joint(model, member) for member in toy.members}
    run = particles(model.start([]), language, 4, SMC(800, ess_threshold=0), order, seed=1)
    ends = [tuple(particle.canvas.tolist()) for particle in run.particles]
    weights = np.exp([particle.log_weight for particle in run.particles])
    assert largest_z(weights, ends, target) < LARGEST_Z
    assert largest_z(np.full(len(weights), weights.mean()), ends, target) > 2 * LARGEST_Z
    # Particles on the same canvas share a row.
    assert run.canvases < 400


def test_resampling_leaves_the_estimates_unbiased() -> None:
    """Means over 90 runs of 12 particles are right for the evidence and for each string's mass, in every scheme."""
    model, toy = hidden_markov(8), ToyCanvases(DECEIVING, 4)
    language = canvas_language(compile(sg.regex(DECEIVING), VOCABULARY))
    target = {member: joint(model, member) for member in toy.members}
    common = sorted(target, key=lambda member: -target[member])[:4]
    rows, resampled, errors, logs = [], 0, [], []
    for seed in range(90):
        scheme: Any = ("multinomial", "stratified", "systematic", "residual")[seed % 4]
        sampler = SMC(12, ess_threshold=0.9, resampling=scheme)
        run = particles(model.start([]), language, 4, sampler, LeftToRight(), seed)
        masses: dict[Tokens, float] = defaultdict(float)
        for particle in run.particles:
            masses[tuple(particle.canvas.tolist())] += math.exp(particle.log_weight) / 12
        evidence = sum(masses.values())
        assert math.log(evidence) == pytest.approx(run.log_evidence)
        rows.append([evidence, *(masses[member] for member in common)])
        resampled += sum(each.resampled for each in run.rounds)
        errors.append(run.standard_error or 0.0)
        logs.append(run.log_evidence)
    assert resampled > 90
    means, spread = np.mean(rows, axis=0), np.std(rows, axis=0) / math.sqrt(len(rows))
    wanted = np.array([sum(target.values()), *(target[member] for member in common)])
    assert (np.abs(means - wanted) / spread < 5.2).all()  # two-sided 1e-6 over 5 means
    # The error that a run reports has the size of the actual spread, or is a little too large.
    assert 0.8 < float(np.mean(errors)) / float(np.std(logs)) < 2


def test_one_step_is_a_draw_from_the_posterior_of_the_first_pass() -> None:
    """A single step needs no weights: they all equal the evidence."""
    model, toy = hidden_markov(7), ToyCanvases("(ab|1)*a?", 3)
    language = canvas_language(compile(sg.regex("(ab|1)*a?"), VOCABULARY))
    run = particles(model.start([]), language, 3, SMC(600), RandomOrder(per_step=3), seed=3)
    logits = np.asarray(model.start([]).denoise(np.full((1, 3), MASK, dtype=np.int32))[0], dtype=np.float64)
    distribution = toy.distribution(logits, tail="scored")
    counts: dict[Tokens, int] = defaultdict(int)
    for particle in run.particles:
        counts[tuple(particle.canvas.tolist())] += 1
    likely = {member: Fraction(share) for member, share in distribution.items() if share > 0.004}
    rest = Fraction(1) - sum(likely.values())
    merged: dict[Tokens, int] = defaultdict(int)
    for end, count in counts.items():
        merged[end if end in likely else ()] += count
    assert chi_square(merged, {**likely, (): rest}) < chi_square_bound(len(likely) + 1)
    evidence = {round(particle.log_weight, 9) for particle in run.particles}
    assert len(evidence) == 1
    assert len(run.rounds) == run.canvases == 1


def test_context_free_languages() -> None:
    """Balanced brackets are not regular; charts instead of messages give the same weights."""
    language = ContextFreeLanguage(compile(sg.lark('start: pair*\npair: "a" start "b"'), VOCABULARY))

    def matches(tokens: Sequence[int]) -> bool:
        text, depth = VOCABULARY.decode(tokens), 0
        for byte in text:
            depth += 1 if byte == ord("a") else -1
            if depth < 0:
                return False
        return depth == 0

    model, slots = hidden_markov(2), 5
    members = [
        (*tokens, *[EOS] * (slots - size))
        for size in range(slots + 1)
        for tokens in product((1, 2, 3), repeat=size)
        if matches(tokens)
    ]
    target = {member: joint(model, member) for member in members}
    run = particles(model.start([]), language, slots, SMC(300, ess_threshold=0), LeftToRight(), seed=5)
    ends = [tuple(particle.canvas.tolist()) for particle in run.particles]
    weights = np.exp([particle.log_weight for particle in run.particles])
    assert largest_z(weights, ends, target) < LARGEST_Z
    assert largest_z(np.full(len(weights), weights.mean()), ends, target) > 1.5 * LARGEST_Z


# particles that die


class Zeroing:
    """A language whose posteriors treat completions below e^-60 as impossible, as exact zeros would be."""

    def __init__(self, pattern: str, slots: int) -> None:
        self._toy = ToyCanvases(pattern, slots)
        self.shortest = 0
        self.vocabulary = VOCABULARY

    def completable(self, canvas: Canvas) -> bool:
        return bool(len(self._toy.agreeing(canvas)))

    def posterior(self, distribution: MeanField, *, tail: str) -> _ZeroingPosterior:
        return _ZeroingPosterior(self._toy, distribution)


class _ZeroingPosterior:
    def __init__(self, toy: ToyCanvases, distribution: MeanField) -> None:
        self._toy, self._distribution = toy, distribution
        self.log_z = self.clamped(distribution.canvas)

    def _masses(self, canvas: Canvas) -> NDArray[np.float64]:
        free = self._distribution.free[canvas[self._distribution.free] == FREE]
        logs = np.zeros(len(self._toy.agreeing(canvas)))
        for slot in free:
            logs += self._distribution.log_probs(int(slot))[self._toy.agreeing(canvas)[:, slot]]
        return np.where(logs < -60, 0.0, np.exp(logs))

    def clamped(self, canvas: Canvas) -> float:
        mass = float(self._masses(canvas).sum())
        return math.log(mass) if mass else -math.inf

    def draw(self, generator: np.random.Generator) -> Completion:
        masses = self._masses(self._distribution.canvas)
        chosen = self._toy.agreeing(self._distribution.canvas)[generator.choice(len(masses), p=masses / masses.sum())]
        return Completion(chosen.astype(np.int32), 0.0)


def certain(tokens: Sequence[int]) -> Distribution:
    return {token: Fraction(1, len(tokens)) for token in tokens}


def test_particles_without_weight_are_dropped() -> None:
    """After an a the model turns out to be sure of b, which the language forbids: half of the particles die."""
    first = (FREE, FREE)
    given = {(first, 0): certain([A, B]), (first, 1): certain([A, B]), ((A, FREE), 1): certain([B])}
    language: Any = Zeroing("aa|ba|bb", 2)
    for threshold in (0.0, 1.0):
        run = particles(
            TableDenoiser(0, (A, B), given | {((B, FREE), 1): certain([A, B])}),
            language,
            2,
            SMC(400, ess_threshold=threshold),
            LeftToRight(),
            seed=2,
        )
        ends = {tuple(particle.canvas.tolist()) for particle in run.particles}
        assert ends == {(B, A), (B, B)}
        assert len(run.particles) == 400 if threshold else 220 < len(run.particles) < 310
        # The model writes ba or bb with 1/2; each particle's weight is 3/4; two thirds survive.
        assert math.exp(run.log_evidence) == pytest.approx(0.5, abs=0.1)


def test_nothing_is_left_where_all_particles_die() -> None:
    given = {((FREE, FREE), 0): certain([A]), ((FREE, FREE), 1): certain([A]), ((A, FREE), 1): certain([B])}
    language: Any = Zeroing("aa", 2)
    denoiser = TableDenoiser(0, (A, B), given)
    run = particles(denoiser, language, 2, SMC(5), LeftToRight(), seed=0)
    assert run.particles == []
    assert run.log_evidence == -math.inf
    assert run.standard_error is None
    assert denoiser.forwards == 2
    assert [(each.live, each.ess) for each in run.rounds] == [(5, pytest.approx(5)), (0, 0.0)]


def test_a_canvas_that_cannot_be_completed_is_refused_before_any_pass() -> None:
    denoiser = TableDenoiser(0, (A, B))
    language = canvas_language(compile(sg.regex("ab"), VOCABULARY))
    twister = Twister(denoiser, MASK, language, SMC(2), RandomOrder())
    with pytest.raises(GenerationError, match="its free slots cannot be filled"):
        twister.run(np.array([B, FREE], dtype=np.int32), np.random.default_rng(0))
    assert denoiser.forwards == 0


# ``fill_smc``

LETTERS = Vocabulary([b"", b"a", b"b", b"c", b"ab", b"bc", b""], eos=[0], special={6: "<mask>"})


def test_samples() -> None:
    """Outputs are strings of the language with their own tokens and weights, and each step records its probability."""
    model = HashDiffusion(LETTERS, seed=3)
    samples = fill_smc(model, "", sg.regex("(ab|c)+"), canvas=5, sampler=SMC(24), seed=1)
    assert samples.lossless
    assert samples.particles == sum(sample.particles for sample in samples.samples) == 24
    assert samples.forwards == samples.samples[0].result.stats.forwards == len(samples.history) == 5
    assert samples.tokens == 24 * 5
    assert samples.log_evidence is not None
    assert samples.standard_error is not None
    logs = np.array([sample.log_weight for sample in samples.samples])
    assert np.logaddexp.reduce(logs) - math.log(24) == pytest.approx(samples.log_evidence)
    assert (np.diff(logs) <= 0).all()
    tokens = [result.tokens for result in samples.results]
    assert len(set(tokens)) == len(tokens)
    for result in samples.results:
        assert set(result.text.replace("ab", "").replace("c", "")) == set()
        assert result.data == LETTERS.decode(result.tokens)
        assert len(result.steps) == len(result.tokens) + (len(result.tokens) < 5)
        # In the last slot there is no room for the tokens "a" and "b"; after it there is room for nothing.
        in_pair = LETTERS.decode(result.tokens[:4]).endswith(b"a")
        cut_at = None if len(result.tokens) < 4 else 5 if in_pair else 4
        assert (result.cut_at, result.finish_reason) == (cut_at, "stop" if cut_at is None else "length")
        assert all(step.log_z is not None and step.logprob <= 1e-9 for step in result.steps)
    again = fill_smc(model, "", sg.regex("(ab|c)+"), canvas=5, sampler=SMC(24), seed=1)
    assert [sample.log_weight for sample in again.samples] == logs.tolist()
    other = fill_smc(model, "", sg.regex("(ab|c)+"), canvas=5, sampler=SMC(24), seed=2)
    assert [sample.log_weight for sample in other.samples] != logs.tolist()


def test_a_step_tells_the_native_log_probability() -> None:
    """Each token has it from the pass that revealed it; the sum is that of the trajectory by the model alone."""
    model = HashDiffusion(LETTERS, seed=8)
    samples = fill_smc(model, "", sg.regex("[abc]{4}"), canvas=4, sampler=SMC(3), order=LeftToRight(2), temperature=0.7)
    for result in samples.results:
        denoiser = model.start([])
        canvas = np.full((1, 4), 6, dtype=np.int32)
        for start in (0, 2):
            logits = denoiser.denoise(canvas)[0].astype(np.float64) / 0.7
            distributions = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
            whole = (*result.tokens, *[EOS] * (4 - len(result.tokens)))
            for slot, step in enumerate(result.steps[start : start + 2], start=start):
                assert step.log_z is not None
                assert step.logprob + step.log_z == pytest.approx(distributions[slot, whole[slot]], abs=1e-5)
            canvas[0, start : start + 2] = whole[start : start + 2]


def test_what_is_given_stays_and_has_no_probability() -> None:
    model = HashDiffusion(LETTERS, seed=3)
    samples = fill_smc(model, "", sg.regex("[abc]+"), canvas=[FREE, 3, FREE], sampler=SMC(5))
    assert all(result.tokens[1:2] == (3,) for result in samples.results)
    assert samples.forwards == 2
    assert all(result.steps[1].log_z is None for result in samples.results)
    whole = fill_smc(model, "", sg.regex("abc"), canvas=[1, 2, 3], sampler=SMC(5))
    assert (whole.forwards, whole.log_evidence, whole.results[0].text) == (0, 0.0, "abc")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sampler": SMC(4, proposal=sg.Multinomial())}, ValueError, "apply to tokens"),
        ({"sampler": sg.diffusion.Dingo() if hasattr(sg, "Dingo") else None}, TypeError, r"expected SMC"),
        ({"order": "random"}, TypeError, "expected a RevealOrder"),
        ({"order": FixedOrder((0, 1))}, ValueError, "must name every free slot of the canvas; slot 2 is missing"),
        ({"temperature": 0.0}, ValueError, "temperature must be positive and finite"),
        ({"canvas": 1}, BudgetError, "canvas"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fill_smc(HashDiffusion(LETTERS), "", sg.regex("[abc]{3}"), **({"canvas": 3} | options))


def test_a_grammar_that_asks_for_mask() -> None:
    with pytest.raises(GenerationError, match="slot 1: the grammar asks for MASK"):
        fill_smc(HashDiffusion(LETTERS), "", sequence("a", SpecialToken("<mask>"), "b"), canvas=3, order=LeftToRight())


def test_other_models_are_refused() -> None:
    model: Any = object()
    with pytest.raises(TypeError, match="expected a DiffusionModel, found object"):
        fill_smc(model, "", sg.regex("a"))


@pytest.mark.parametrize("order", [RandomOrder, LeftToRight, lambda per_step: FixedOrder((0,), per_step)])
def test_orders_reveal_something(order: Callable[[int], RevealOrder]) -> None:
    with pytest.raises(ValueError, match="per_step must be an integer of at least 1; found 0"):
        order(0)


def test_an_order_that_reveals_what_is_not_free() -> None:
    class Stubborn:
        def reveal(self, free: Any, generator: Any, /) -> Any:
            return np.array([0])

    with pytest.raises(ValueError, match=r"must reveal at least one slot, all free; found \[0\]"):
        fill_smc(HashDiffusion(LETTERS), "", sg.regex("[abc]{2}"), canvas=2, order=Stubborn())
