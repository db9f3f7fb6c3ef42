"""Search guided by a user's function: A* by a heuristic, and beams and tokens by the quality of prefixes.

Sources: G. Chatziveroglou, "A*-Decoding: Token-Efficient Inference Scaling" (2025, arXiv 2505.13672), whose heuristic
is a reward model; here it may also be a bound, with which the result is exact. S. Koneru et al., "Quality-Aware
Decoding: Unifying Quality Estimation and Decoding" (2025, arXiv 2502.08561); S. Chakraborty et al., "Transfer Q*:
Principled Decoding for LLM Alignment" (2024, arXiv 2405.20495).
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
    Critic,
    Rollout,
    at_least,
    best,
    look,
    next_token,
    outcome,
    roll,
    scored,
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
    """Finds the outputs of the highest score by best-first search with a priority queue.

    The score is the log-probability of the output and its EOS under the model, not renormalised by the mask, plus the
    potentials' score of the complete output. The priority of a prefix is its log-probability plus the heuristic of the
    rest. If the heuristic never underestimates, the results are exactly the best outputs within the budget, ties in the
    order of their tokens. A heuristic of 0 is such a bound if no potential scores above 0. ``log_weight`` of a sample
    is its score.

    For languages with few probable strings: names, labels, spans, small objects. In free text there are too many
    prefixes, and ``limit`` ends the search.

    Attributes:
        heuristic: an estimate of the rest of a prefix, log-probability and potentials together; minus infinity drops
            the prefix. None for ``most``.
        admissible: whether the heuristic never underestimates. If it may, as a reward model, the first result is an
            output whose score is at least the priority of every prefix left.
        most: an upper bound on the heuristic and on the potentials' score of any output. Continuations of a prefix are
            visited only while this bound is promising; infinity visits all that the mask allows.
        outputs: how many to return.
        limit: the maximal number of prefixes that the model is run on.

    Raises:
        ValueError: a number is out of range.
    """

    heuristic: Critic | None = None
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
            raise ValueError("AStar: without a heuristic, most=inf gives all prefixes the same priority; lower most")

    @property
    def target(self) -> str:
        """See ``SequenceSampler``."""
        return "the most probable outputs" if self.admissible else "outputs that the heuristic leads to"

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; uses no random numbers.

        Raises:
            LimitExceeded: more than ``limit`` prefixes have a higher priority than the results.
            GenerationError: an output shows that the heuristic underestimates, or it exceeds ``most``; or as always.
        """
        search = BestFirst(
            branches,
            limit=self.limit,
            heuristic=None if self.heuristic is None else lambda branch: self._estimate(branch.hypothesis),
            score_bound=self.most,
        )
        results = list(islice(search, self.outputs))
        if self.admissible and self.heuristic is not None:
            for each in results:
                self._check(branches, each.branch, each.total)
        return outcome(branches, [(each.branch, each.total) for each in results], particles=len(results))

    def _estimate(self, hypothesis: Hypothesis) -> float:
        if self.heuristic is None:
            return self.most
        estimate = scored(self.heuristic, hypothesis, what="AStar: the heuristic")
        if estimate > self.most:
            raise GenerationError(
                "AStar: the heuristic",
                f"it exceeds most={self.most:g}",
                evidence=f"{estimate:g} for {hypothesis!r}",
                remedy="set most to an upper bound of the heuristic, or to infinity",
            )
        return estimate

    def _check(self, branches: Branches, branch: Branch, total: float) -> None:
        """Check that no prefix of an output had a priority below the output's score."""
        hypothesis, log_p = branches.problem.prefix(), 0.0
        for step in branch.steps():
            if step.token is None:
                break
            hypothesis = hypothesis.extended(step.token)
            log_p += step.logprob + (step.log_z or 0.0)
            bound = log_p + self._estimate(hypothesis)
            if total > bound + _ROUNDING * (1 + abs(total)):
                raise GenerationError(
                    "AStar: the heuristic",
                    "it underestimates, so a better output may have been missed",
                    evidence=f"{hypothesis!r} has priority {bound:.6g} and leads to {total:.6g}",
                    remedy="let it return at least the score of the rest, or set admissible=False",
                )


@final
@dataclass(frozen=True, slots=True)
class QualityBeam:
    """Beam search by the model's probability and by a critic of prefixes.

    The value of a prefix is

        (1 - weight) mean log-probability of its tokens + weight critic(prefix)

    with scores of potentials among the log-probabilities. After each token the best prefixes are retained, complete
    outputs among them, until all of them are complete. ``log_weight`` of a sample is its value.

    Attributes:
        critic: scores a prefix or a complete output; minus infinity drops it.
        weight: of the critic, in [0, 1].
        beams: the number of retained prefixes.
        candidates: tokens that extend each prefix, the most probable allowed ones; None for twice ``beams``.

    Raises:
        ValueError: a number is out of range.
    """

    critic: Critic
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
        """See ``SequenceSampler``; uses no random numbers."""
        width = 2 * self.beams if self.candidates is None else self.candidates
        beam = [(Rollout.of(branches.root()), 0.0)]
        while any(not rollout.is_finished for rollout, _ in beam):
            grown = [each for each in beam if each[0].is_finished]
            live = [rollout for rollout, _ in beam if not rollout.is_finished]
            for rollout, distribution in zip(live, look(branches, [each.branch for each in live]), strict=True):
                before = rollout.branch
                for child in take(branches, before, distribution, best(branches, before, distribution, width)):
                    after = rollout.after(child, 1)
                    grown.append((after, self._value(after)))
            beam = self._pruned(branches, grown)
        return outcome(branches, [(rollout.branch, value) for rollout, value in beam], particles=self.beams)

    def _value(self, rollout: Rollout) -> float:
        score = scored(self.critic, rollout.branch.hypothesis, what="QualityBeam: the critic") if self.weight else 0.0
        return (1 - self.weight) * rollout.mean + self.weight * score

    def _pruned(self, branches: Branches, grown: Sequence[tuple[Rollout, float]]) -> list[tuple[Rollout, float]]:
        """The best prefixes; of equal ones complete outputs first, then by tokens."""
        ordered = sorted(grown, key=lambda each: (-each[1], not each[0].is_finished, each[0].branch.hypothesis.tokens))
        retained = [each for each in ordered[: self.beams] if each[1] > -math.inf]
        for rollout, _ in ordered[len(retained) :]:
            branches.drop(rollout.branch)
        return retained


@final
@dataclass(frozen=True, slots=True)
class TransferQ:
    """Tokens by the rewards of their completions: outputs completed from each of the most probable tokens.

    At each step at which the mask allows a choice, every candidate is completed under the grammar and the budget, and

        probability of a candidate ~ its own exp(strength mean reward of its completions)

    Attributes:
        reward: of complete outputs.
        candidates: the number of tokens to try, the most probable allowed ones.
        completions: of each candidate; more than one only with a ``policy`` that is not deterministic.
        strength: of rewards relative to log-probabilities.
        policy: samples the completions; rewards are estimated under it.
        sampler: takes a token from the tilted distribution.

    Raises:
        ValueError: a number is out of range.

    Complexity: ``candidates`` times ``completions`` outputs for each token.
    """

    reward: Critic
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
        # Samplers expect ascending ids.
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
        """``strength`` times the mean reward of completions; minus infinity if a child has no completion."""
        branches.logits([child for child in children if child.finish_reason is None])
        starts = [
            Rollout.of(child if child.finish_reason is not None else branches.copy(child), self.completions, origin)
            for origin, child in enumerate(children)
        ]
        sums, counts = np.zeros(len(children)), np.zeros(len(children))
        for rollout in roll(branches, starts, sampler=self.policy, generator=generator, ended=lambda _: False):
            reward = scored(self.reward, rollout.branch.hypothesis, what="TransferQ: the reward")
            sums[rollout.origin] += rollout.count * reward
            counts[rollout.origin] += rollout.count
        means: NDArray[np.float64] = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
        means[means > -np.inf] *= self.strength
        return means
