"""Canvases of a finite automaton over tokens, by enumeration of all ways to fill them, in exact fractions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import TokenAutomaton, token_automaton
from structgen.engine import Vocabulary

__all__ = ["Case", "Runs", "a_case", "chi_square", "chi_square_bound", "random_runs"]

Distribution = list[list[Fraction]]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Runs:
    """An automaton whose edges are tokens; several may join the same states; state 0 is the start.

    Attributes:
        moves: (source, target, token); one that is listed twice counts twice.
        ends: the accepting states.
        eos: the tokens that may follow a string, to the end of the canvas.
        size: of the vocabulary.
    """

    states: int
    moves: tuple[tuple[int, int, int], ...]
    ends: frozenset[int]
    eos: tuple[int, ...]
    size: int

    def count(self, tokens: Sequence[int]) -> int:
        """How many runs accept the tokens."""
        at = {0: 1}
        for token in tokens:
            after: dict[int, int] = {}
            for source, target, label in self.moves:
                if label == token and source in at:
                    after[target] = after.get(target, 0) + at[source]
            at = after
        return sum(runs for state, runs in at.items() if state in self.ends)

    def length(self, tokens: Sequence[int]) -> int:
        """How many tokens come before the first EOS."""
        return next((at for at, token in enumerate(tokens) if token in self.eos), len(tokens))

    def count_canvas(self, tokens: Sequence[int]) -> int:
        """How many runs accept the tokens before the first EOS; 0 if anything but EOS follows it."""
        length = self.length(tokens)
        return self.count(tokens[:length]) if all(token in self.eos for token in tokens[length:]) else 0

    def fillings(self, canvas: Sequence[int]) -> Iterator[Tokens]:
        """Every full canvas that agrees with this one and spells a string of the grammar."""
        for tokens in product(*(range(self.size) if held == FREE else [held] for held in canvas)):
            if self.count_canvas(tokens):
                yield tokens

    def automaton(self, class_of: Sequence[int] | None = None) -> TokenAutomaton:
        """The same in the project's form; by default every token is a class of its own."""
        of = class_of or [0 if token in self.eos else token + 1 for token in range(self.size)]
        classes = max(of) + 2
        first = {of[token]: token for token in reversed(range(self.size)) if token not in self.eos}
        rows = [(source, target, of[token]) for source, target, token in self.moves if first[of[token]] == token]
        return token_automaton(
            [state in self.ends for state in range(self.states)],
            np.array([classes - 1 if token in self.eos else of[token] for token in range(self.size)], dtype=np.int32),
            classes,
            np.array(rows, dtype=np.int64).reshape(-1, 3),
        )

    def language(self, class_of: Sequence[int] | None = None) -> RegularLanguage:
        tokens = [b"" if token in self.eos else bytes([97 + token]) for token in range(self.size)]
        return RegularLanguage(self.automaton(class_of), Vocabulary(tokens, eos=self.eos))


def random_runs(rng: random.Random, size: int, *, is_deterministic: bool, eos: int = 1) -> tuple[Runs, list[int]]:
    """An automaton in which some tokens are equivalent and one is dead, and the classes of its tokens."""
    states, inner = rng.randint(1, 4), size - eos
    classes = rng.randint(1, max(1, inner - 1))
    class_of = [rng.randint(0, classes) for _ in range(inner)] + [0] * eos
    moves: list[tuple[int, int, int]] = []
    for source, of in product(range(states), range(1, classes + 1)):
        copies = rng.choice((0, 1, 1)) if is_deterministic else rng.choice((0, 1, 1, 2, 2, 3))
        for _ in range(copies):
            target = rng.randrange(states)
            moves += [(source, target, token) for token in range(inner) if class_of[token] == of]
    ends = frozenset(state for state in range(states) if rng.random() < 0.6)
    # Classes are numbered without gaps, so that the last is that of EOS.
    present = sorted({0, *class_of})
    return Runs(states, tuple(moves), ends, tuple(range(inner, size)), size), [present.index(of) for of in class_of]


@dataclass(frozen=True)
class Case:
    """A canvas with a distribution, and all its completions.

    Attributes:
        weights: mass of each completion under the mean-field distribution; runs are not counted.
    """

    runs: Runs
    language: RegularLanguage
    canvas: tuple[int, ...]
    distribution: Distribution
    tail: Literal["free", "scored"]
    weights: dict[Tokens, Fraction]

    @property
    def mean_field(self) -> MeanField:
        free = [slot for slot, held in enumerate(self.canvas) if held == FREE]
        logits = [[float(np.log(float(share))) for share in self.distribution[slot]] for slot in free]
        return MeanField(self.array, np.array(logits, dtype=np.float64).reshape(len(free), self.runs.size))

    @property
    def array(self) -> NDArray[np.int32]:
        return np.array(self.canvas, dtype=np.int32)

    def posterior(self) -> dict[Tokens, Fraction]:
        """Probability of each completion, counted once per run."""
        counted = {tokens: weight * self.runs.count_canvas(tokens) for tokens, weight in self.weights.items()}
        total = sum(counted.values())
        return {tokens: weight / total for tokens, weight in counted.items()}

    def mass(self, canvas: Sequence[int] | None = None) -> Fraction:
        """Mass of all completions, or of those that agree with a canvas; the slots that it fixes do not count."""
        canvas = self.canvas if canvas is None else canvas
        weights = weighed(self.runs, canvas, self.distribution, self.tail)
        return sum((weight * self.runs.count_canvas(tokens) for tokens, weight in weights.items()), Fraction(0))


def weighed(runs: Runs, canvas: Sequence[int], distribution: Distribution, tail: str) -> dict[Tokens, Fraction]:
    """The completions of a canvas with their masses; slots of a free tail hold the first EOS and weigh nothing."""
    found: dict[Tokens, Fraction] = {}
    for tokens in runs.fillings(canvas):
        weight, length = Fraction(1), runs.length(tokens)
        for slot, (held, token) in enumerate(zip(canvas, tokens, strict=True)):
            if held != FREE:
                continue
            if slot > length and tail == "free":
                weight *= token == runs.eos[0]
            else:
                weight *= distribution[slot][token]
        if weight:
            found[tokens] = weight
    return found


def a_distribution(rng: random.Random, slots: int, size: int) -> Distribution:
    rows = [[rng.choice((1, 2, 3, 7, 20)) for _ in range(size)] for _ in range(slots)]
    return [[Fraction(weight, sum(row)) for weight in row] for row in rows]


def a_case(seed: int, *, is_deterministic: bool, tail: Literal["free", "scored"], fixed: float = 0.2) -> Case:
    """A random automaton, canvas and distribution; about half of the canvases have no completion."""
    rng = random.Random(f"{seed} {is_deterministic} {tail}")
    size = rng.randint(3, 5)
    runs, class_of = random_runs(rng, size, is_deterministic=is_deterministic, eos=rng.choice((1, 1, 2)))
    canvas = tuple(rng.randrange(size) if rng.random() < fixed else FREE for _ in range(rng.randint(0, 4)))
    distribution = a_distribution(rng, len(canvas), size)
    return Case(runs, runs.language(class_of), canvas, distribution, tail, weighed(runs, canvas, distribution, tail))


def chi_square(counts: dict[Tokens, int], distribution: dict[Tokens, Fraction]) -> float:
    """The chi-square statistic of draws against a distribution; infinite if an impossible outcome was sampled."""
    draws = sum(counts.values())
    if any(not distribution.get(tokens) for tokens in counts):
        return float("inf")
    expected = {tokens: draws * float(share) for tokens, share in distribution.items()}
    return sum((counts.get(tokens, 0) - wanted) ** 2 / wanted for tokens, wanted in expected.items())


def chi_square_bound(outcomes: int) -> float:
    """A bound above the 1 - 1e-6 quantile of chi-squared with ``outcomes - 1`` degrees (Laurent and Massart 2000)."""
    degrees, x = outcomes - 1, -np.log(1e-6)
    return float(degrees + 2 * np.sqrt(degrees * x) + 2 * x)
