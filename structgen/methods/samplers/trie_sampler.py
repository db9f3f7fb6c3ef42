"""Samplers that learn from each output in a trie of prefixes: ``ASAp`` and ``RejectionTrie``.

Source: K. Park, J. Wang, T. Berg-Kirkpatrick, N. Polikarpova and L. D'Antoni, "Grammar-Aligned Decoding" (NeurIPS 2024,
arXiv 2405.21047): adaptive sampling with approximate expected futures.  Beyond it, potentials are learned too.

Source: P. Parys et al., "Constrained Adaptive Rejection Sampling" (2025, arXiv 2510.01902).  Beyond it, potentials may
be weights, by which complete outputs are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampling.protocol import Samples
from structgen.decode.step.distribution import log_mass
from structgen.errors import GenerationError
from structgen.methods.samplers.prefix_trie import PrefixTrie, TrieWalks, check_trie_sampler, merged

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches

__all__ = ["ASAp", "RejectionTrie"]

_GRID_STEP: Final = 0.125
_NEGLIGIBLE: Final = 40.0
"""Where an integrand is cut off, as a logarithm."""


@final
@dataclass(frozen=True, slots=True)
class ASAp:
    """Adaptive sampling with approximate expected futures.

    The first output is sampled by locally constrained decoding.  With every output the distribution of later ones comes
    closer to the target: the model's distribution given the constraint, times the potentials.  It reaches the target
    only in the limit, and weights do not correct the difference.

    Attributes:
        samples: number of outputs that are returned.
        discard: number of outputs that are sampled before them, to learn from.
        trie: the trie, to be shared between calls; None starts with an empty one.
        batch: number of outputs that are sampled together; they learn from the batches before them.
        score_bound: upper bound of the potentials' score of an output.
        max_tries: maximum number of outputs in a row that the potentials forbid.

    Raises:
        ValueError: a number is out of range.
    """

    samples: int = 16
    discard: int = 0
    trie: PrefixTrie | None = None
    batch: int = 1
    score_bound: float = 0.0
    max_tries: int = 1000

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = False
    target: ClassVar[str] = (
        "the model's distribution given the constraint, times the potentials, more nearly with every sample"
    )

    def __post_init__(self) -> None:
        check_trie_sampler("ASAp", self.samples, self.batch, self.max_tries, self.score_bound)
        if not isinstance(self.discard, int) or self.discard < 0:
            raise ValueError(f"ASAp: discard must be an integer of at least 0; found {self.discard!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``.

        Raises:
            ValueError: the trie belongs to another problem.
            GenerationError: ``max_tries`` outputs in a row were forbidden, or a score is above ``score_bound``.
        """
        trie = PrefixTrie() if self.trie is None else self.trie
        walks = TrieWalks(branches, trie, generator, score_bound=self.score_bound, rejects=False)
        outputs: list[Branch] = []
        needed = self.discard + self.samples
        failures = 0
        while len(outputs) < needed and trie.root.log_success > -math.inf:
            if failures >= self.max_tries:
                raise _all_forbidden(branches, failures)
            tried = walks.run(min(self.batch, needed - len(outputs)))
            accepted = [each for each in tried if each is not None]
            failures = 0 if accepted else failures + len(tried)
            outputs += accepted
        return branches.samples(merged(branches, outputs[self.discard :]), particles=self.samples)


def _all_forbidden(branches: Branches, count: int) -> GenerationError:
    return GenerationError(
        "ASAp",
        f"the potentials forbade {count} outputs in a row",
        evidence=branches.culprits,
        remedy="let potentials score prefixes too (prefix, early), relax them, or raise max_tries",
    )


@final
@dataclass(frozen=True, slots=True)
class RejectionTrie:
    """Independent samples of exactly the target: the model's distribution given the constraint, times the potentials.

    A try samples from the model alone.  It is rejected when it leaves the constraint, and at its end with a probability
    that follows from the potentials.  Later tries exclude every continuation that is known to be impossible, and at
    visited prefixes every token outside of the mask, so fewer and fewer are rejected.  Each output stays a result of a
    try with a probability in proportion to the target, whatever was learned before (see ``prefix_trie``).

    The number of rejections depends on how probable valid outputs are under the model.  ``Samples.particles`` is the
    number of tries.

    The run stops at its k-th acceptance, k = ``samples``.  The number of acceptances divided by that of tries would
    estimate the evidence ``Z`` too high; the estimate here is unbiased.  Let the score bound be 0.  Given everything
    before it, try ``t`` results in output ``x`` with probability ``target(x) / s_t``, where ``s_t`` is the success of
    the root before it.  Let the try take an exponential random time of rate ``s_t``.  Then each ``x`` comes up at the
    constant rate ``target(x)``: acceptances are a Poisson process of rate ``Z``, and the outputs are independent of its
    times.  The time ``tau`` of the k-th has a gamma distribution, and ``E[(k - 1) / tau] = Z``.  The times are not
    sampled; the expectation given the tries is computed:

        estimate of Z = (k - 1) integral over v > 0 of the product over t of s_t / (s_t + v)

    While nothing is learned, ``s_t = 1``, it is ``(k - 1) / (T - 1)`` after ``T`` tries.  With one output there is no
    such estimate, and ``Samples.log_evidence`` is None.  The expectation of ``exp(log_evidence)`` times the weight of
    ``x`` in ``Samples.weights`` is the target of ``x``.  All this is for runs that ``max_tries`` does not end.

    Source: J. B. S. Haldane, "On a method of estimating frequencies" (Biometrika 1945), for ``(k - 1) / (T - 1)``;
    D. Blackwell, "Conditional expectation and unbiased sequential estimation" (1947), for expectations given the tries.

    Attributes:
        samples: number of outputs.
        max_tries: maximum number of tries in total.
        trie: the trie, to be shared between calls; None starts with an empty one.
        batch: maximum number of tries that are made together; they learn from the batches before them.
        score_bound: upper bound of the potentials' score of an output.  An output is rejected at its end with
            probability ``1 - exp(score - score_bound)``.

    Raises:
        ValueError: a number is out of range.
    """

    samples: int = 1
    max_tries: int = 10_000
    trie: PrefixTrie | None = None
    batch: int = 8
    score_bound: float = 0.0

    lossless: ClassVar[bool] = True
    takes_best: ClassVar[bool] = False
    target: ClassVar[str] = "the model's distribution given the constraint, times the potentials, exactly"

    def __post_init__(self) -> None:
        check_trie_sampler("RejectionTrie", self.samples, self.batch, self.max_tries, self.score_bound)
        if self.max_tries < self.samples:
            raise ValueError(
                f"RejectionTrie: each output takes a try; found max_tries={self.max_tries} for samples={self.samples}"
            )

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``.

        Raises:
            ValueError: the trie belongs to another problem.
            GenerationError: ``max_tries`` tries were not enough, or a score is above ``score_bound``.
        """
        trie = PrefixTrie() if self.trie is None else self.trie
        walks = TrieWalks(branches, trie, generator, score_bound=self.score_bound, rejects=True)
        outputs: list[Branch] = []
        log_successes: list[float] = []  # for each try, the log of the root's success before it
        while len(outputs) < self.samples and trie.root.log_success > -math.inf:
            if len(log_successes) >= self.max_tries:
                raise self._too_many(branches, len(outputs), trie.root.log_success)
            log_success = trie.root.log_success
            # Outputs count in the order of the tries: the order of completion would favour short outputs.
            for branch in walks.run(self._next(len(outputs), len(log_successes))):
                log_successes.append(log_success)
                if branch is not None:
                    outputs.append(branch)
                    if len(outputs) == self.samples:
                        break
        log_evidence, error = self._evidence(len(outputs), log_successes)
        return branches.samples(
            merged(branches, outputs),
            particles=len(log_successes),
            lossless=True,
            log_evidence=log_evidence,
            standard_error=error,
            remark=f"{len(outputs)} of {len(log_successes)} tries were accepted",
        )

    def _next(self, accepted: int, tries: int) -> int:
        """The number of tries to make next: about as many as are needed, by the acceptance rate so far."""
        needed = math.ceil((self.samples - accepted) * (tries + 1) / (accepted + 1))
        return min(needed, self.batch, self.max_tries - tries)

    def _evidence(self, accepted: int, log_successes: Sequence[float]) -> tuple[float | None, float | None]:
        """Log of the estimate of ``Z``, see the class, and its standard error; None for what cannot be estimated.

        The error is approximate: acceptances minus ``Z`` times the sum of ``1 / s`` are a martingale, whose variance is
        the sum of ``(Z / s) (1 - Z / s)``.
        """
        if not accepted:
            return -math.inf, None
        if accepted == 1:
            return None, None
        logs = np.array(log_successes)
        log_z = math.log(accepted - 1) + _log_integral(logs)
        if accepted == 2:
            return log_z + self.score_bound, None
        rates = np.minimum(np.exp(log_z - logs), 1.0)
        return log_z + self.score_bound, math.sqrt(float((rates * (1 - rates)).sum())) / (accepted - 1)

    def _too_many(self, branches: Branches, accepted: int, log_success: float) -> GenerationError:
        return GenerationError(
            "RejectionTrie",
            f"{self.max_tries} tries resulted in {accepted} of {self.samples} outputs",
            evidence=f"the outputs that are not excluded have probability {math.exp(log_success):.3g}; "
            f"{branches.culprits}",
            remedy="raise max_tries, describe the output in the prompt, or take SMC(...), which rejects nothing",
        )


def _log_integral(log_rates: NDArray[np.float64]) -> float:
    """Log of the integral over ``v > 0`` of the product of ``r / (r + v)`` over the rates ``r``, two at least.

    The trapezoid rule in ``log v`` is exact to rounding: the integrand is analytic for ``|Im log v| < pi``, and less
    than ``exp(-40)`` of the integral is outside of the grid.  Source: L. N. Trefethen and J. A. C. Weideman, "The
    Exponentially Convergent Trapezoidal Rule" (SIAM Review 2014).

    Complexity: O(distinct rates * log(number of rates)).
    """
    # The integral is at least 1 / (sum of 1 / r); above v it is at most the product of two rates, divided by v.
    log_least = -log_mass(-log_rates)
    low = log_least - _NEGLIGIBLE
    high = float(np.sort(log_rates)[:2].sum()) - log_least + _NEGLIGIBLE
    grid = low + _GRID_STEP * np.arange(math.ceil((high - low) / _GRID_STEP))
    exponents = grid.copy()
    for log_rate, count in zip(*np.unique(log_rates, return_counts=True), strict=True):
        exponents -= count * np.logaddexp(0.0, grid - log_rate)
    return log_mass(exponents) + math.log(_GRID_STEP)
