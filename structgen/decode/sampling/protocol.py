"""The contract of samplers of whole outputs: the problem, the protocol, and the weighted samples that they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Hypothesis, Potential
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.result import DraftStats, Result
    from structgen.engine import Constraint
    from structgen.models.protocol import LanguageModel

__all__ = [
    "PrefixExpectation",
    "Problem",
    "Round",
    "Sample",
    "Samples",
    "SequenceSampler",
    "Twist",
    "check_score",
]


class PrefixExpectation(Protocol):
    """An estimate of what the outputs with a prefix weigh, by which a sampler is twisted."""

    def log_h(self, branch: Branch, /) -> float:
        """Return the logarithm of the estimate for the prefix of ``branch``."""

    def tilts(self, branch: Branch, ids: NDArray[np.intp], log_p: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return ``log_h`` after each of the tokens ``ids``, relative to that of ``branch``."""


class Twist(Protocol):
    """What makes estimates for one problem."""

    def start(self) -> PrefixExpectation:
        """Return estimates that have seen nothing yet."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """A distribution over outputs, known up to its sum.

    The model's, on the members of a constraint, weighted by potentials.

        target(x) = p(x, stop | prompt) exp(sum of complete(x)), for members x of at most ``max_tokens`` tokens

    Two sequences of tokens are two outputs, though they may spell the same text.  ``p`` is the model's distribution at
    temperature 1.

    Attributes:
        model: the language model.
        prompt: the tokens before the output, at least one.
        constraint: compiled for the model's vocabulary.
        potentials: what else outputs are worth.
        max_tokens: the most tokens that an output has, EOS not counted; at least ``constraint.min_tokens()``.
        begun: tokens of the output that stand already; the prompt ends with them.
    """

    model: LanguageModel
    prompt: tuple[int, ...]
    constraint: Constraint
    potentials: Sequence[Potential]
    max_tokens: int
    begun: tuple[int, ...] = ()

    def prefix(self) -> Hypothesis:
        """The output as it stands."""
        return Hypothesis(self.constraint.grammar, self.constraint.vocabulary, self.begun)


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One output.

    Attributes:
        result: the output.
        log_weight: logarithm of its weight, not normalised; of an output that several particles came to, together.
        particles: how many came to it.
        score: what ``BestOf`` and its like compare; else what the potentials say of it.
    """

    result: Result
    log_weight: float
    particles: int = 1
    score: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Round:
    """Where a run stood after one token more.

    Attributes:
        live: particles that are being written.
        finished: particles that are complete.
        distinct: different sequences among those that are being written.
        ess: effective sample size, of all particles; 0 where all weights are zero.
        log_evidence: estimate of the log of the target's sum, so far: of what may still be completed.
        resampled: whether particles were drawn anew by their weights then.
    """

    live: int
    finished: int
    distinct: int
    ess: float
    log_evidence: float
    resampled: bool


@final
@dataclass(frozen=True)
class Samples:
    """Outputs with weights.

    Attributes:
        samples: those of positive weight, the heaviest first; of equal weight in the order of their tokens.
        lossless: whether the weights are those of the target (see ``Problem``); then any average over the target is
            estimated by the weighted average over the samples.
        log_evidence: estimate of the log of the sum of the target: of the probability that the model alone writes an
            output that the constraint and the potentials allow; minus infinity where all weights are zero, and None
            where the sampler does not estimate it.
        standard_error: of ``log_evidence``; None where it is not known.
        particles: how many were drawn.
        forwards: forward passes of the model.
        tokens: tokens that were written, on all branches, stops included.
        asked: how often potentials were asked, and the matcher about single tokens.
        verdict: who forbade what, in words; for messages.
        masks: how many masks were filled; particles in the same state share one.
        history: the rounds of a run, for samplers that have them.
        drafts: what drafts brought, to all branches together; None where there were none.
    """

    samples: tuple[Sample, ...]
    lossless: bool
    log_evidence: float | None
    standard_error: float | None
    particles: int
    forwards: int
    tokens: int
    asked: int
    verification: str = field(repr=False)
    masks: int = 0
    history: tuple[Round, ...] = field(default=(), repr=False)
    drafts: DraftStats | None = field(default=None, repr=False)

    @property
    def verdict(self) -> str:
        """The old name of ``verification``, for one release."""
        return self.verification

    @property
    def results(self) -> tuple[Result, ...]:
        """The outputs."""
        return tuple(sample.result for sample in self.samples)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Normalised weights, ``[len(samples)]``; they sum to 1."""
        logs = np.array([sample.log_weight for sample in self.samples])
        if not len(logs):
            return logs
        weights: NDArray[np.float64] = np.exp(logs - logs.max())
        weights /= weights.sum()
        return weights

    @property
    def ess(self) -> float:
        """Effective sample size: how many independent samples of the target are worth as much.

        Source: A. Kong, "A note on importance sampling using standardized weights" (1992).
        """
        counts = np.array([sample.particles for sample in self.samples])
        return float(1 / (self.weights**2 / counts).sum()) if len(counts) else 0.0

    def mean(self, function: Callable[[Result], float]) -> float:
        """Estimate the expectation of a function of the output under the target.

        Raises:
            GenerationError: all weights are zero.
        """
        self._check_any()
        return float(sum(w * function(sample.result) for w, sample in zip(self.weights, self.samples, strict=True)))

    def draw(self, generator: np.random.Generator) -> Result:
        """Draw one output by its weight.

        Raises:
            GenerationError: all weights are zero.
        """
        self._check_any()
        return self.samples[int(generator.choice(len(self.samples), p=self.weights))].result

    def best(self) -> Result:
        """The output of the highest weight.

        Raises:
            GenerationError: all weights are zero.
        """
        self._check_any()
        return self.samples[0].result

    def _check_any(self) -> None:
        if not self.samples:
            raise GenerationError(
                "sampling",
                f"all {self.particles} weights are zero",
                evidence=self.verification,
                remedy="take more particles, or loosen what forbids most",
            )


@runtime_checkable
class SequenceSampler(Protocol):
    """Draws outputs, not tokens: it may go back, write several and compare them."""

    @property
    def lossless(self) -> bool:
        """Whether the weights of its samples are those of the target."""

    @property
    def target(self) -> str:
        """What its samples stand for, in a few words."""

    @property
    def takes_best(self) -> bool:
        """Whether a single output is the heaviest sample, or drawn by weight."""

    def run(self, branches: Branches, generator: np.random.Generator, /) -> Samples:
        """Draw.

        Raises:
            GenerationError: the model, the matcher or a potential is not usable.
        """


def check_score(branches: Branches, branch: Branch, bound: float) -> None:
    """Check that the potentials give a finished output at most what they were said to.

    Raises:
        GenerationError: they give it more.
    """
    if branch.score > bound:
        raise GenerationError(
            "potentials",
            f"an output has a score above score_bound={bound:g}",
            evidence=f"{branch.score:g} for {branch.hypothesis!r}",
            remedy="let scores be at most 0, or set score_bound to the most that an output can have",
        )
