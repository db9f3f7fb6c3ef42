"""Search guided by a function of the user: A* by a heuristic, and beams and tokens by the quality of prefixes.

Source: G. Chatziveroglou, "A*-Decoding: Token-Efficient Inference Scaling" (2025, arXiv 2505.13672), whose heuristic is
a reward model; here it may also be a bound, under which the result is exact.

Sources: S. Koneru et al., "Quality-Aware Decoding: Unifying Quality Estimation and Decoding" (2025, arXiv 2502.08561);
S. Chakraborty et al., "Transfer Q*: Principled Decoding for LLM Alignment" (2024, arXiv 2405.20495).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.distribution import log_mass
from structgen.decode.step.sampler import Greedy, Sampler
from structgen.errors import GenerationError
from structgen.methods.samplers.best_first import BestFirst
from structgen.methods.strategies.branch_ops import (
    Judge,
    Rollout,
    at_least,
    best,
    judged,
    look,
    next_token,
    outcome,
    roll,
    take,
)

if TYPE_CHECKING:
    from structgen.decode.potentials import Hypothesis
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.distribution import Distribution

__all__ = ["AStar", "QualityBeam", "TransferQ"]

_ROUNDING: Final = 1e-9


@final
@dataclass(frozen=True, slots=True)
class AStar:
    """Finds the outputs of the highest score by a search with a priority queue.

    The score is the log-probability of the output and its stop under the model, not renormalised by the mask, and what
    potentials say of the complete output.  A prefix promises its own log-probability and what the heuristic expects
    of the rest; the most promising is followed.  Where the heuristic never expects too little, the outputs found are
    exactly the best of all within the budget, and of equal ones those whose tokens come first in order.  With a
    heuristic of 0 that is so where no potential gives more than 0.  ``log_weight`` of a sample is its score.

    For languages with few probable members: names, labels, spans, small objects.  In free text there are too many
    prefixes, and ``limit`` ends the search.

    Attributes:
        heuristic: what the rest of a prefix comes to, log-probability and potentials together; minus infinity gives
            it up.  None is ``most``.
        admissible: whether the heuristic never gives too little.  If it may, as a reward model, what comes first is an
            output that comes to no less than any prefix promises that is left then.
        most: the most that the heuristic gives, and that potentials give to any output.  What may follow a prefix is
            looked at only while that, at most, is promising; infinity looks at all that the mask allows.
        outputs: how many to find.
        limit: the most prefixes that are run through the model.

    Raises:
        ValueError: a number is out of range.
    """

    heuristic: Judge | None = None
    admissible: bool = True
    most: float = 0.0
    outputs: int = 1
    limit: int = 10_000

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least("AStar", 1, outputs=self.outputs, limit=self.limit)
        if math.isnan(self.most) or self.most == -math.inf:
            raise ValueError(f"AStar: most must be a number; found {self.most!r}")
        if self.heuristic is None and self.most == math.inf:
            raise ValueError("AStar: without a heuristic, most=inf would promise the same of all prefixes")

    @property
    def target(self) -> str:
        """See ``SequenceSampler``."""
        return "the most probable outputs" if self.admissible else "outputs that the heuristic leads to"

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number.

        Raises:
            LimitExceeded: more than ``limit`` prefixes are more promising than what was found.
            GenerationError: an output shows that the heuristic gives too little, or it gives more than ``most``; or as
                always.
        """
        search = BestFirst(
            branches,
            limit=self.limit,
            heuristic=None if self.heuristic is None else lambda branch: self._promise(branch.hypothesis),
            score_bound=self.most,
        )
        found = list(islice(search, self.outputs))
        if self.admissible and self.heuristic is not None:
            for each in found:
                self._check(branches, each.branch, each.total)
        return outcome(branches, [(each.branch, each.total) for each in found], drawn=len(found))

    def _promise(self, hypothesis: Hypothesis) -> float:
        if self.heuristic is None:
            return self.most
        promise = judged(self.heuristic, hypothesis, what="AStar: the heuristic")
        if promise > self.most:
            raise GenerationError(
                "AStar: the heuristic",
                f"it gives more than most={self.most:g}",
                evidence=f"{promise:g} for {hypothesis!r}",
                remedy="set most to the most that it gives, or to infinity",
            )
        return promise

    def _check(self, branches: Branches, branch: Branch, total: float) -> None:
        """See whether the prefixes of an output promised what it came to."""
        hypothesis, log_p = branches.problem.prefix(), 0.0
        for step in branch.steps():
            if step.token is None:
                break
            hypothesis = hypothesis.extended(step.token)
            log_p += step.logprob + (step.log_z or 0.0)
            promise = log_p + self._promise(hypothesis)
            if total > promise + _ROUNDING * (1 + abs(total)):
                raise GenerationError(
                    "AStar: the heuristic",
                    "it gives too little, so that a better output may have been passed over",
                    evidence=f"{hypothesis!r} promises {promise:.6g} and leads to {total:.6g}",
                    remedy="let it give at least what the rest comes to, or set admissible=False",
                )


@final
@dataclass(frozen=True, slots=True)
class QualityBeam:
    """Beam search by the model's probability and by a critic of prefixes.

    A prefix is worth

        (1 - weight) mean log-probability of its tokens + weight critic(prefix)

    with scores of potentials among the log-probabilities.  After each token the best prefixes stay, complete outputs
    among them; it ends when all of them are complete.  ``log_weight`` of a sample is what it is worth.

    Attributes:
        critic: what a prefix, or a complete output, is worth; minus infinity gives it up.
        weight: of the critic, in [0, 1].
        beams: how many prefixes stay.
        candidates: tokens that each is continued with, the most probable that the mask allows; None is twice ``beams``.

    Raises:
        ValueError: a number is out of range.
    """

    critic: Judge
    weight: float = 0.5
    beams: int = 4
    candidates: int | None = None

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "no distribution: the best by probability and critic, as far as a beam search finds it"

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"QualityBeam: weight must be in [0, 1]; found {self.weight!r}")
        at_least("QualityBeam", 1, beams=self.beams, candidates=1 if self.candidates is None else self.candidates)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number."""
        width = 2 * self.beams if self.candidates is None else self.candidates
        held = [(Rollout.of(branches.root()), 0.0)]
        while any(not rollout.is_finished for rollout, _ in held):
            grown = [each for each in held if each[0].is_finished]
            live = [rollout for rollout, _ in held if not rollout.is_finished]
            for rollout, distribution in zip(live, look(branches, [each.branch for each in live]), strict=True):
                before = rollout.branch
                for child in take(branches, before, distribution, best(branches, before, distribution, width)):
                    after = rollout.after(child, 1)
                    grown.append((after, self._worth(after)))
            held = self._kept(branches, grown)
        return outcome(branches, [(rollout.branch, worth) for rollout, worth in held], drawn=self.beams)

    def _worth(self, rollout: Rollout) -> float:
        worth = judged(self.critic, rollout.branch.hypothesis, what="QualityBeam: the critic") if self.weight else 0.0
        return (1 - self.weight) * rollout.mean + self.weight * worth

    def _kept(self, branches: Branches, grown: Sequence[tuple[Rollout, float]]) -> list[tuple[Rollout, float]]:
        """The best; of equal ones complete ones first, then those whose tokens come first in order."""
        ordered = sorted(grown, key=lambda each: (-each[1], not each[0].is_finished, each[0].branch.hypothesis.tokens))
        kept = [each for each in ordered[: self.beams] if each[1] > -math.inf]
        for rollout, _ in ordered[len(kept) :]:
            branches.drop(rollout.branch)
        return kept


@final
@dataclass(frozen=True, slots=True)
class TransferQ:
    """Tokens by what they lead to: the reward of outputs that are completed from each of the most probable ones.

    At each step at which the mask leaves a choice, every candidate is completed under the grammar and the budget, and

        probability of a candidate ~ its own exp(strength mean reward of its completions)

    Attributes:
        reward: of complete outputs.
        candidates: how many tokens are tried, the most probable that the mask allows.
        completions: of each candidate; more than one only with a ``policy`` that draws.
        strength: of rewards against log-probabilities.
        policy: how completions are written: the model whose values are taken.
        sampler: how a token is taken from the tilted distribution.

    Raises:
        ValueError: a number is out of range.

    Complexity: ``candidates`` times ``completions`` outputs for each token.
    """

    reward: Judge
    candidates: int = 8
    completions: int = 1
    strength: float = 1.0
    policy: Sampler = field(default_factory=Greedy)
    sampler: Sampler = field(default_factory=Greedy)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "step by step the mask's distribution, tilted by the rewards of completions"

    def __post_init__(self) -> None:
        at_least("TransferQ", 1, candidates=self.candidates, completions=self.completions)
        if not (math.isfinite(self.strength) and self.strength >= 0):
            raise ValueError(f"TransferQ: strength must be finite and not negative; found {self.strength!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        branch: Branch | None = branches.root()
        while branch is not None and branch.finish_reason is None:
            (distribution,) = look(branches, [branch])
            if len(distribution) <= 1:
                branch = next_token(branches, branch, distribution, self.policy, generator)
            else:
                branch = self._best(branches, branch, distribution, generator)
        return outcome(branches, [] if branch is None else [(branch, 0.0)])

    def _best(
        self, branches: Branches, branch: Branch, distribution: Distribution, generator: np.random.Generator
    ) -> Branch | None:
        # In the order of ids, which is what samplers expect.
        indices = sorted(best(branches, branch, distribution, self.candidates))
        children = take(branches, branch, distribution, indices)
        log_q = distribution.log_q[indices] + self._values(branches, children, generator)
        mass = log_mass(log_q) if len(log_q) else -math.inf
        chosen = -1
        if mass > -math.inf:
            only = np.flatnonzero(log_q > -np.inf)
            chosen = int(only[0]) if len(only) == 1 else self.sampler.draw(log_q - mass, generator)
        for origin, child in enumerate(children):
            if origin != chosen:
                branches.drop(child)
        return children[chosen] if chosen >= 0 else None

    def _values(
        self, branches: Branches, children: Sequence[Branch], generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """``strength`` times the mean reward of completions; minus infinity where none of them can be completed."""
        branches.logits([child for child in children if child.finish_reason is None])
        starts = [
            Rollout.of(child if child.finish_reason is not None else branches.copy(child), self.completions, origin)
            for origin, child in enumerate(children)
        ]
        sums, counts = np.zeros(len(children)), np.zeros(len(children))
        for rollout in roll(branches, starts, sampler=self.policy, generator=generator, ended=lambda _: False):
            reward = judged(self.reward, rollout.branch.hypothesis, what="TransferQ: the reward")
            sums[rollout.origin] += rollout.count * reward
            counts[rollout.origin] += rollout.count
        means: NDArray[np.float64] = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
        means[means > -np.inf] *= self.strength
        return means
