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
from structgen.markup import bars, card, shortened, table

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.result import DraftStats, Result
    from structgen.engine import Constraint
    from structgen.models.protocol import LanguageModel

__all__ = ["PrefixExpectation", "Problem", "Round", "Sample", "Samples", "SequenceSampler", "Twist", "check_score"]


class PrefixExpectation(Protocol):
    """A twist of a particle filter: an estimate of the total weight of the outputs with a prefix."""

    def log_h(self, branch: Branch, /) -> float:
        """Return the logarithm of the estimate for the prefix of ``branch``."""

    def tilts(self, branch: Branch, ids: NDArray[np.intp], log_p: NDArray[np.float64], /) -> NDArray[np.float64]:
        """Return ``log_h`` after each of the tokens ``ids``, relative to that of ``branch``."""


class Twist(Protocol):
    """Makes the estimates of one run."""

    def start(self) -> PrefixExpectation:
        """Return new estimates, for one run."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """The target distribution: the model's, on the strings of a constraint, weighted by potentials; unnormalised.

        target(x) = p(x, EOS | prompt) exp(sum of complete(x)), for valid x of at most ``max_tokens`` tokens

    Different token sequences are different outputs, even if they spell the same text.  ``p`` is the model's
    distribution at temperature 1.

    Attributes:
        model: the language model.
        prompt: the tokens before the output, at least one.
        constraint: compiled for the model's vocabulary.
        potentials: factors of the target.
        max_tokens: maximum number of tokens of an output, EOS not counted; at least ``constraint.min_tokens()``.
        begun: tokens that the output begins with; the prompt ends with them.
    """

    model: LanguageModel
    prompt: tuple[int, ...]
    constraint: Constraint
    potentials: Sequence[Potential]
    max_tokens: int
    begun: tuple[int, ...] = ()

    def prefix(self) -> Hypothesis:
        """The tokens that the output begins with."""
        return Hypothesis(self.constraint.grammar, self.constraint.vocabulary, self.begun)


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One output with its weight.

    Attributes:
        result: the output.
        log_weight: log of its unnormalised weight; that of all its particles together.
        particles: number of particles that wrote it.
        score: the score that ``BestOf`` and other searches compare; for other samplers the potentials' score.
    """

    result: Result
    log_weight: float
    particles: int = 1
    score: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Round:
    """The state of a run after a round, in which each live particle grows by a token.

    Attributes:
        live: number of particles that are not complete.
        finished: number of particles that are complete.
        distinct: number of different sequences among the live particles.
        ess: effective sample size of all particles; 0 if all weights are zero.
        log_evidence: estimate of the log of the target's sum, from the prefixes so far.
        resampled: whether the round ended with resampling.
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
        samples: the outputs of positive weight, by falling weight, then by their tokens.
        lossless: whether the weights are those of the target (see ``Problem``): then the weighted mean over the samples
            estimates the mean over the target.  Otherwise weights only rank the outputs, or count them.
        log_evidence: log of an estimate of the target's sum: without scores, of the probability that the model alone
            writes a string that the constraint and the potentials allow; minus infinity if all weights are zero, and
            None if the sampler does not estimate it.  If ``lossless``, ``exp(log_evidence)`` is unbiased, and
            ``exp(log_evidence)`` times an output's weight is so for the target of the output.
        standard_error: standard error of ``log_evidence``; None if it is not estimated.
        particles: number of particles.
        forwards: number of forward passes of the model.
        tokens: number of tokens that were written on all branches, EOS included.
        queries: number of queries: to potentials, and to the matcher about single tokens.
        verification: why weights are zero, for messages: for instance, which potentials forbade how much.
        masks: number of masks that were filled; particles in the same state share one.
        history: the rounds of the run, for samplers that have rounds.
        drafts: statistics of draft tokens, of all branches together; None without drafts.
    """

    samples: tuple[Sample, ...]
    lossless: bool
    log_evidence: float | None
    standard_error: float | None
    particles: int
    forwards: int
    tokens: int
    queries: int
    verification: str = field(repr=False)
    masks: int = 0
    history: tuple[Round, ...] = field(default=(), repr=False)
    drafts: DraftStats | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        evidence = "" if self.log_evidence is None else f", log_evidence {self.log_evidence:.4g}"
        lossless = "lossless" if self.lossless else "not lossless"
        return f"Samples({len(self.samples)} outputs of {self.particles} particles{evidence}, {lossless})"

    def _repr_html_(self) -> str:
        evidence = "not estimated" if self.log_evidence is None else f"{self.log_evidence:.4g}"
        error = "" if self.standard_error is None else f" \u00b1 {self.standard_error:.2g}"
        facts = [
            ("log evidence", f"{evidence}{error}"),
            ("weights", "those of the target" if self.lossless else "they rank or count outputs"),
            ("effective sample size", f"{self.ess:.1f} of {self.particles} particles"),
            ("cost", f"{self.tokens:,} tokens in {self.forwards:,} forward passes"),
        ]
        rows = zip((shortened(each.result.text) for each in self.samples), self.weights.tolist(), strict=True)
        return card("Samples", table(facts), bars("outputs by weight", [(*row, f"{row[1]:.3g}") for row in rows]))

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
        """Effective sample size: the number of independent samples of the target with the same variance.

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
        """Sample one output by its weight.

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
                remedy="take more particles, or relax the potential that forbids most",
            )


@runtime_checkable
class SequenceSampler(Protocol):
    """Samples whole outputs: it may backtrack, write several outputs and compare them."""

    @property
    def lossless(self) -> bool:
        """Whether the weights of its samples are those of the target."""

    @property
    def target(self) -> str:
        """A short description of the distribution of its samples."""

    @property
    def takes_best(self) -> bool:
        """Whether a single output is the heaviest sample; else it is sampled by weight."""

    def run(self, branches: Branches, generator: np.random.Generator, /) -> Samples:
        """Sample outputs.

        Raises:
            GenerationError: the model, the matcher or a potential fails.
        """


def check_score(branch: Branch, bound: float) -> None:
    """Check that the potentials' score of a finished output is within a bound.

    Raises:
        GenerationError: it is above the bound.
    """
    if branch.score > bound:
        raise GenerationError(
            "potentials",
            f"an output has a score above score_bound={bound:g}",
            evidence=f"{branch.score:g} for {branch.hypothesis!r}",
            remedy="let scores be at most 0, or set score_bound to an upper bound of all scores",
        )
