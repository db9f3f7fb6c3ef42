"""Against repetition in free text: momentum decoding and look-back decoding.

Both look at what was written before, and both act in free text alone.  In a JSON array of records the same keys have to
come again and again; a penalty that saw them would take the structure for a loop.
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
    """The most probable token, less a resistance against going in circles.

        argmax over the ``top_k`` most probable v of  p(v) - alpha * resistance[length(v)]

    ``p`` is the distribution after masking.  ``length(v)`` is the length of the longest run of tokens that ends with
    ``v``, would now come, and has come before; 0 where ``v`` is new.  A token that is new and the most probable is thus
    taken as it is.  Only runs within one piece of free text count, without the token that ends the piece, which is
    structure; elsewhere the most probable token is taken.

    Deviation from the paper: the prompt is no part of the text unless ``prompt`` says so; under a grammar it is rather
    an instruction, or a document to take quotations from.

    Attributes:
        alpha: how strong the resistance is.
        top_k: how many tokens are compared.
        resistance: for each length from 0 on; longer runs count as the longest.
        free: what free text is.
        prompt: whether what repeats the prompt is resisted too.

    Raises:
        ValueError: a number is out of range.

    Source: T. Lan et al., "Momentum Decoding: Open-ended Text Generation As Graph Exploration" (2022, arXiv
        2212.02175); ``resistance`` as the published code has it for GPT2-XL.
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
        """See ``SequenceSampler``; draws no random number."""
        return write_output(branches, generator, _MomentumChooser(self, branches))


@final
class _MomentumChooser:
    """One output."""

    forwards = 0

    def __init__(self, momentum: Momentum, branches: Branches) -> None:
        self._momentum = momentum
        self._branches = branches
        self._text = _FreeTokens(momentum.free, branches)
        self._runs: set[tuple[int, ...]] = set()  # that have come
        self._recent: deque[int] = deque(maxlen=max(len(momentum.resistance) - 1, 1))
        if momentum.prompt:
            problem = branches.problem
            for token in problem.prompt[: len(problem.prompt) - len(problem.begun)]:
                self._write(token)
            self._recent.clear()

    def logits(self, branch: Branch) -> Logits:
        """See ``Walker``."""
        (logits,) = self._branches.logits([branch])
        return logits

    def choose(self, place: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``Walker``."""
        if not self._text.reach(place):
            return int(log_p.argmax())
        for token in self._text.written():
            if token is None:
                self._recent.clear()
            else:
                self._write(token)
        candidates = _most_probable(log_p, self._momentum.top_k)
        resistance = [self._resistance(int(place.distribution.ids[index])) for index in candidates]
        scores = np.exp(log_p[candidates]) - self._momentum.alpha * np.array(resistance)
        return int(candidates[scores.argmax()])

    def _resistance(self, token: int) -> float:
        """What is in the way of a token."""
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
    """The most probable token.

    Where the distribution is one that was there before, one of the most probable that leads back.

    A step is about to repeat another where the Kullback-Leibler divergence of its distribution from one of the last
    ``window`` distributions is at most ``threshold``.  Then one of the ``top_k`` most probable tokens v is drawn in
    proportion to

        exp(-KL(v)),  KL(v) the least divergence of the distribution after v from a distribution within the prompt

    so that what is coherent with the prompt is more probable.  Distributions are the model's over the whole vocabulary,
    in nats: after masking two of them may have no token in common.  Candidates are the most probable of those that the
      mask
    allows.  Only free text is compared with free text, and elsewhere the most probable token is taken.

    Each alarm costs a forward pass for each candidate, or one for all on a ``PackedModel``; the first also one over the
    prompt's last ``window`` tokens.  ``Stats.forwards`` counts them.

    Deviation from the paper: distributions within the prompt are no past distributions, for the reason that
      ``Momentum`` gives.  Where
    the prompt is one token, the draw is uniform, as in the paper's first form.

    Attributes:
        threshold: of the divergence, in nats.
        top_k: how many candidates.
        window: how many distributions are remembered, of the output and of the prompt each.
        free: what free text is.

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
    """One output."""

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
        """See ``Walker``."""
        (logits,) = self._branches.logits([branch])
        return logits

    def choose(self, place: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``Walker``."""
        is_new = not self._text.is_at(place)  # not asked once more since a potential refused
        if not self._text.reach(place):
            return int(log_p.argmax())
        if is_new:
            self._nearest = self._distributions.nearest(place.logits)
            self._distributions.add(place.logits)
        if self._nearest > self._look_back.threshold:
            return int(log_p.argmax())
        candidates = _most_probable(log_p, self._look_back.top_k)
        return int(
            candidates[
                inverse_cdf(self._coherence(place.branch, place.distribution.ids[candidates]), generator.random())
            ]
        )

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
        """The distributions within the prompt: of all its tokens but the first, as far back as the window goes."""
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
        """What the model says after each of some tokens; the context stays as it is."""
        session, length = context.session, context.session.length
        if self._packed is not None:
            forks = [session.fork() for _ in tokens]
            self.forwards += 1
            rows = self._packed.extend_many(
                [Extension(fork, [int(token)], False) for fork, token in zip(forks, tokens, strict=True)]
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
        """Remember a distribution."""
        self._rows.append(_log_distribution(logits))

    def nearest(self, logits: Logits) -> float:
        """The least divergence of a distribution from those remembered; infinity where there are none."""
        log_p = _log_distribution(logits)
        possible = log_p > -np.inf
        log_p = log_p[possible]
        p = np.exp(log_p)
        own = float(p @ log_p)
        return min((max(own - float(p @ row[possible]), 0.0) for row in self._rows), default=math.inf)


@final
class _FreeTokens:
    """Which tokens of an output are free text."""

    def __init__(self, free: FreeText, branches: Branches) -> None:
        self._free = free
        self._size = branches.problem.constraint.vocabulary.size
        self._places: list[int] = []
        self._told = 0
        self._tokens: tuple[int, ...] = ()
        self._is_free = False
        self._at = -1

    def is_at(self, place: ChoicePoint) -> bool:
        """Whether ``reach`` was told of this place last."""
        return self._at == len(place.branch.hypothesis.tokens)

    def reach(self, place: ChoicePoint) -> bool:
        """Go on to a place, and say whether it is free text."""
        if not self.is_at(place):
            self._tokens = place.branch.hypothesis.tokens
            self._at = len(self._tokens)
            self._is_free = self._free.holds(place.distribution, self._size)
            if self._is_free:
                self._places.append(self._at)
        return self._is_free

    def written(self) -> Iterator[int | None]:
        """The tokens of free text that were not told yet; None in the place of one that ends a piece of it.

        Such a token, a closing quote for instance, is structure.
        """
        while self._told < len(self._places) - 1:
            position, following = self._places[self._told], self._places[self._told + 1]
            self._told += 1
            yield self._tokens[position] if following == position + 1 else None


def _most_probable(log_p: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """The indices of the most probable that are possible, of equal ones the first."""
    best = np.fromiter(islice(descending(log_p, count), count), dtype=np.intp)
    return best[log_p[best] > -np.inf]


def _log_distribution(logits: Logits) -> NDArray[np.float64]:
    distribution: NDArray[np.float64] = logits.astype(np.float64) - log_mass(logits)
    return distribution
