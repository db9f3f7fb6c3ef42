"""Decoding that avoids repetition in free text: momentum decoding and look-back decoding.

Both use the earlier output, and both act only in free text. In a JSON array of records the same keys must recur; a
penalty that saw them would treat the structure as a loop.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.distribution import descending, log_mass
from structgen.decode.step.sampler import inverse_cdf
from structgen.methods.strategies.branch_ops import at_least
from structgen.methods.strategies.token_chooser import ChoicePoint, FreeText, write_output
from structgen.models.protocol import Extension, PackedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.context import Context
    from structgen.models.protocol import Logits

__all__ = ["LookBack", "Momentum"]


@final
@dataclass(frozen=True, slots=True)
class Momentum:
    """The most probable token, minus a resistance against repetition.

        argmax over the ``top_k`` most probable v of  p(v) - alpha * resistance[length(v)]

    ``p`` is the distribution after masking. ``length(v)`` is the length of the longest run of tokens that would end
    with ``v`` and has occurred before; 0 if ``v`` is new. So a new token that is the most probable is always taken.
    Only runs within one segment of free text count, without the token that ends it, which is structure; elsewhere the
    most probable token is taken.

    Deviation from the paper: the prompt is not part of the text unless ``prompt`` is set; under a grammar it is rather
    an instruction, or a document to quote from.

    Attributes:
        alpha: the strength of the resistance.
        top_k: the number of compared tokens.
        resistance: for each length from 0 on; longer runs count as the longest.
        free: the criterion for free text.
        prompt: whether repetition of the prompt is resisted, too.

    Raises:
        ValueError: a number is out of range.

    Source: T. Lan et al., "Momentum Decoding: Open-ended Text Generation As Graph Exploration" (2022, arXiv
        2212.02175); ``resistance`` as in the published code for GPT2-XL.
    """

    alpha: float = 0.2
    top_k: int = 5
    resistance: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    free: FreeText = field(default_factory=FreeText)
    prompt: bool = False

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = (
        "no distribution: the most probable token at each step, less a resistance to repetition in free text"
    )

    def __post_init__(self) -> None:
        at_least("Momentum", 0.0, alpha=self.alpha)
        at_least("Momentum", 1, top_k=self.top_k)
        if not self.resistance or any(not value >= 0 for value in self.resistance):
            raise ValueError(
                f"Momentum: resistance must be a number of at least 0 for each length; found {self.resistance!r}"
            )

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; uses no random numbers."""
        return write_output(branches, generator, _MomentumChooser(self, branches))


@final
class _MomentumChooser:
    """The state of ``Momentum`` for one output."""

    forwards = 0

    def __init__(self, momentum: Momentum, branches: Branches) -> None:
        self._momentum = momentum
        self._branches = branches
        self._text = _FreeTokens(momentum.free, branches)
        self._runs: set[tuple[int, ...]] = set()  # earlier runs
        self._recent: deque[int] = deque(maxlen=max(len(momentum.resistance) - 1, 1))
        if momentum.prompt:
            problem = branches.problem
            for token in problem.prompt[: len(problem.prompt) - len(problem.begun)]:
                self._write(token)
            self._recent.clear()

    def logits(self, branch: Branch) -> Logits:
        """See ``TokenChooser``."""
        (logits,) = self._branches.logits([branch])
        return logits

    def choose(self, point: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``TokenChooser``."""
        if not self._text.reach(point):
            return int(log_p.argmax())
        for token in self._text.new_tokens():
            if token is None:
                self._recent.clear()
            else:
                self._write(token)
        candidates = _most_probable(log_p, self._momentum.top_k)
        resistance = [self._resistance(int(point.distribution.ids[index])) for index in candidates]
        scores = np.exp(log_p[candidates]) - self._momentum.alpha * np.array(resistance)
        return int(candidates[scores.argmax()])

    def _resistance(self, token: int) -> float:
        """The resistance to a token."""
        recent, table = list(self._recent), self._momentum.resistance
        for length in range(min(len(recent) + 1, len(table) - 1), 0, -1):
            if (*recent[len(recent) - length + 1 :], token) in self._runs:
                return table[length]
        return table[0]

    def _write(self, token: int) -> None:
        longest = len(self._momentum.resistance) - 1
        recent = [*self._recent, token]
        for length in range(1, min(len(recent), longest) + 1):
            self._runs.add(tuple(recent[len(recent) - length :]))
        self._recent.append(token)


@final
@dataclass(frozen=True, slots=True)
class LookBack:
    """The most probable token; if the distribution repeats an earlier one, a probable token that leads back.

    A step is about to repeat if the Kullback-Leibler divergence of its distribution from one of the last ``window``
    distributions is at most ``threshold``. Then one of the ``top_k`` most probable tokens v is sampled in proportion to

        exp(-KL(v)),  KL(v) the smallest divergence of the distribution after v from a distribution within the prompt

    so that tokens coherent with the prompt are more probable. Distributions are the model's over the whole vocabulary,
    in nats: after masking two of them may have no token in common. Candidates are the most probable allowed tokens.
    Only free text is compared with free text, and elsewhere the most probable token is taken.

    Each alarm costs a forward pass for each candidate, or one for all on a ``PackedModel``; the first also one over the
    prompt's last ``window`` tokens. ``Stats.forwards`` counts them.

    Deviation from the paper: distributions within the prompt are no earlier distributions, for the reason given at
    ``Momentum``. With a prompt of one token, the sample is uniform, as in the paper's first form.

    Attributes:
        threshold: of the divergence, in nats.
        top_k: the number of candidates.
        window: how many distributions are stored, of the output and of the prompt each.
        free: the criterion for free text.

    Raises:
        ValueError: a number is out of range.

    Source: N. Xu et al., "Look-back Decoding for Open-Ended Text Generation" (2023, arXiv 2305.13477).

    Complexity: O(window V) numbers in memory and multiplications a step.
    """

    threshold: float = 0.5
    top_k: int = 8
    window: int = 128
    free: FreeText = field(default_factory=FreeText)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = (
        "no distribution: the most probable token at each step, and one that leads back where it would repeat"
    )

    def __post_init__(self) -> None:
        at_least("LookBack", 0.0, threshold=self.threshold)
        at_least("LookBack", 1, top_k=self.top_k, window=self.window)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        return write_output(branches, generator, _LookBackChooser(self, branches))


@final
class _LookBackChooser:
    """The state of ``LookBack`` for one output."""

    def __init__(self, look_back: LookBack, branches: Branches) -> None:
        self.forwards = 0
        self._look_back = look_back
        self._branches = branches
        self._text = _FreeTokens(look_back.free, branches)
        self._distributions = _PastDistributions(look_back.window)
        self._nearest = math.inf
        self._prompt: _PastDistributions | None = None
        model = branches.problem.model
        self._packed = model if isinstance(model, PackedModel) else None

    def logits(self, branch: Branch) -> Logits:
        """See ``TokenChooser``."""
        (logits,) = self._branches.logits([branch])
        return logits

    def choose(self, point: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``TokenChooser``."""
        is_new = not self._text.is_at(point)  # otherwise a potential has refused the last choice
        if not self._text.reach(point):
            return int(log_p.argmax())
        if is_new:
            self._nearest = self._distributions.nearest(point.logits)
            self._distributions.add(point.logits)
        if self._nearest > self._look_back.threshold:
            return int(log_p.argmax())
        candidates = _most_probable(log_p, self._look_back.top_k)
        weights = self._coherence(point.branch, point.distribution.ids[candidates])
        return int(candidates[inverse_cdf(weights, generator.random())])

    def _coherence(self, branch: Branch, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """The weights of candidates."""
        if branch.context is None:
            raise ValueError("a finished branch has no candidates")
        if self._prompt is None:
            self._prompt = self._read_prompt(branch.context)
        if not len(self._prompt):
            return np.ones(len(tokens))
        distances = np.array([self._prompt.nearest(row) for row in self._distributions_after(branch.context, tokens)])
        weights: NDArray[np.float64] = np.exp(distances.min() - distances)
        return weights

    def _read_prompt(self, context: Context) -> _PastDistributions:
        """The distributions within the prompt: of all its tokens but the first, within the window."""
        problem, distributions = self._branches.problem, _PastDistributions(self._look_back.window)
        end = len(problem.prompt) - len(problem.begun) - 1
        start = max(0, end - self._look_back.window)
        if start < end:
            session = context.session.fork()
            session.truncate(start)
            for row in session.extend_all(problem.prompt[start:end]):
                distributions.add(row)
            session.close()
            self.forwards += 1
        return distributions

    def _distributions_after(self, context: Context, tokens: NDArray[np.int32]) -> list[Logits]:
        """The logits after each of some tokens; the context is unchanged."""
        session, length = context.session, context.session.length
        if self._packed is not None:
            forks = [session.fork() for _ in tokens]
            self.forwards += 1
            rows = self._packed.extend_many(
                [Extension(fork, [int(token)], all_positions=False) for fork, token in zip(forks, tokens, strict=True)]
            )
            for fork in forks:
                fork.close()
            return rows
        rows = []
        for token in tokens:
            rows.append(session.extend([int(token)]))
            session.truncate(length)
        self.forwards += len(rows)
        return rows


@final
class _PastDistributions:
    """The last distributions of a sequence, in nats."""

    def __init__(self, window: int) -> None:
        self._rows: deque[NDArray[np.float64]] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, logits: Logits) -> None:
        """Store a distribution."""
        self._rows.append(_log_distribution(logits))

    def nearest(self, logits: Logits) -> float:
        """The smallest divergence of a distribution from the stored ones; infinity if there are none."""
        log_p = _log_distribution(logits)
        possible = log_p > -np.inf
        log_p = log_p[possible]
        p = np.exp(log_p)
        own = float(p @ log_p)
        return min((max(own - float(p @ row[possible]), 0.0) for row in self._rows), default=math.inf)


@final
class _FreeTokens:
    """The tokens of an output that are free text."""

    def __init__(self, free: FreeText, branches: Branches) -> None:
        self._free = free
        self._size = branches.problem.constraint.vocabulary.size
        self._positions: list[int] = []
        self._returned = 0
        self._tokens: tuple[int, ...] = ()
        self._is_free = False
        self._at = -1

    def is_at(self, point: ChoicePoint) -> bool:
        """Whether this is the point of the last ``reach``."""
        return self._at == len(point.branch.hypothesis.tokens)

    def reach(self, point: ChoicePoint) -> bool:
        """Advance to a point, and return whether it is free text."""
        if not self.is_at(point):
            self._tokens = point.branch.hypothesis.tokens
            self._at = len(self._tokens)
            self._is_free = self._free.holds(point.distribution, self._size)
            if self._is_free:
                self._positions.append(self._at)
        return self._is_free

    def new_tokens(self) -> Iterator[int | None]:
        """The tokens of free text since the last call; None in place of a token that ends a segment.

        Such a token, for instance a closing quote, is structure.
        """
        while self._returned < len(self._positions) - 1:
            position, following = self._positions[self._returned], self._positions[self._returned + 1]
            self._returned += 1
            yield self._tokens[position] if following == position + 1 else None


def _most_probable(log_p: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """The indices of the most probable possible tokens, of equal ones the first."""
    best = np.fromiter(islice(descending(log_p, count), count), dtype=np.intp)
    return best[log_p[best] > -np.inf]


def _log_distribution(logits: Logits) -> NDArray[np.float64]:
    distribution: NDArray[np.float64] = logits.astype(np.float64) - log_mass(logits)
    return distribution
