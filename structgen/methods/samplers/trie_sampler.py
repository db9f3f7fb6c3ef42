"""Samplers that learn from each output in a trie of prefixes: ``ASAp`` and ``RejectionTrie``.

Source: K. Park, J. Wang, T. Berg-Kirkpatrick, N. Polikarpova and L. D'Antoni, "Grammar-Aligned Decoding" (NeurIPS 2024,
arXiv 2405.21047): adaptive sampling with approximate expected futures.  Beyond it, potentials have their futures too.

Source: P. Parys et al., "Constrained Adaptive Rejection Sampling" (2025, arXiv 2510.01902).  Beyond it, potentials that
are no predicates are respected, by accepting outputs with their weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.sampling.protocol import Samples
from structgen.decode.step.distribution import log_mass
from structgen.errors import GenerationError
from structgen.methods.samplers.prefix_trie import PrefixTrie, TrieWalks, check_trie_sampler, merged

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches

__all__ = ["ASAp", "RejectionTrie"]


@final
@dataclass(frozen=True, slots=True)
class ASAp:
    """Adaptive sampling with approximate expected futures.

    The first output is one of locally constrained decoding.  The more outputs were drawn, the nearer the distribution
    of the next one is to the target: the model's distribution given the constraint, times the potentials.  Any number
      of them falls
    short of it; what they were drawn with is in no weight.

    Attributes:
        samples: how many outputs are returned.
        discard: how many are drawn before them, to learn from.
        trie: what was learned, to be kept between calls; None begins anew in each.
        batch: how many outputs are drawn side by side, which learn from the batches before them.
        score_bound: the most that the potentials give to any output.
        max_tries: how many outputs in a row may turn out to be forbidden by the potentials.

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
        "the model's distribution given the constraint, times the potentials, the more nearly the more drawn"
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
        found: list[Branch] = []
        wanted = self.discard + self.samples
        in_vain = 0
        while len(found) < wanted and trie.root.log_success > -math.inf:
            if in_vain >= self.max_tries:
                raise _all_forbidden(branches, in_vain)
            tried = walks.run(min(self.batch, wanted - len(found)))
            drawn = [each for each in tried if each is not None]
            in_vain = 0 if drawn else in_vain + len(tried)
            found += drawn
        return branches.samples(merged(branches, found[self.discard :]), particles=self.samples)


def _all_forbidden(branches: Branches, count: int) -> GenerationError:
    return GenerationError(
        "ASAp",
        f"the potentials forbade {count} outputs in a row",
        evidence=branches.verification,
        remedy="let potentials judge prefixes too (prefix, early), loosen them, or raise max_tries",
    )


@final
@dataclass(frozen=True, slots=True)
class RejectionTrie:
    """Independent samples of exactly the target: the model's distribution given the constraint, times the potentials.

    A try writes what the model alone would write, and is rejected where it leaves the constraint, or at its end with
    what the potentials take off.  What was found to be impossible is left out of the tries that follow, and of each
    prefix that is visited all that the mask excludes, so that fewer and fewer are rejected: an output ``x`` comes of
    a try with the same multiple of the target, whatever was learned before (see ``prefix_trie``).

    How many are rejected depends on how well the model knows what is wanted.  ``Samples.particles`` is the number of
    tries.

    Attributes:
        samples: how many outputs.
        max_tries: how many tries in all.
        trie: what was learned, to be kept between calls; None begins anew in each.
        batch: the most tries that are made side by side, which learn from the batches before them.
        score_bound: the most that the potentials give to any output.  Outputs of that score are never rejected at the
            end, others with ``1 - exp(score - score_bound)``.

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
            GenerationError: ``max_tries`` tries did not come to as many outputs as are wanted, or a score is above
                ``score_bound``.
        """
        trie = PrefixTrie() if self.trie is None else self.trie
        walks = TrieWalks(branches, trie, generator, score_bound=self.score_bound, rejects=True)
        found: list[Branch] = []
        log_successes: list[float] = []  # of each try, the most that the trie could not exclude
        while len(found) < self.samples and trie.root.log_success > -math.inf:
            if len(log_successes) >= self.max_tries:
                raise self._too_many(branches, len(found), trie.root.log_success)
            log_success = trie.root.log_success
            # Outputs count in the order of the tries: which of them are done first tells something of what they are.
            for branch in walks.run(self._next(len(found), len(log_successes))):
                log_successes.append(log_success)
                if branch is not None:
                    found.append(branch)
                    if len(found) == self.samples:
                        break
        log_evidence, error = self._evidence(len(found), log_successes)
        return branches.samples(
            merged(branches, found),
            particles=len(log_successes),
            lossless=True,
            log_evidence=log_evidence,
            standard_error=error,
            remark=f"{len(found)} of {len(log_successes)} tries were accepted",
        )

    def _next(self, accepted: int, tries: int) -> int:
        """How many tries to make: about as many as are needed, as far as that can be told."""
        needed = math.ceil((self.samples - accepted) * (tries + 1) / (accepted + 1))
        return min(needed, self.batch, self.max_tries - tries)

    def _evidence(self, accepted: int, log_successes: list[float]) -> tuple[float, float | None]:
        """Log of the sum of the target, and its error.

        A try is accepted with ``Z / s``, so as many are expected as ``Z`` times the sum of ``1 / s``.
        """
        if not accepted:
            return -math.inf, None
        logs = np.array(log_successes)
        log_z = math.log(accepted) - log_mass(-logs)
        rates = np.minimum(np.exp(log_z - logs), 1.0)
        error = math.sqrt(float((rates * (1 - rates)).sum())) / accepted
        return log_z + self.score_bound, error if accepted > 1 else None

    def _too_many(self, branches: Branches, accepted: int, log_success: float) -> GenerationError:
        return GenerationError(
            "RejectionTrie",
            f"{self.max_tries} tries came to {accepted} of {self.samples} outputs",
            evidence=f"what was not excluded yet has probability {math.exp(log_success):.3g}; {branches.verification}",
            remedy="raise max_tries, tell the model in the prompt what the output looks like, or take SMC(...), which "
            "rejects nothing",
        )
