"""Diverse beam search: groups of beams, each with a penalty for tokens that earlier groups took.

Prefixes are ranked by the model's own log-probability, not renormalised over the allowed tokens, so the result
approximates the most probable valid strings.  Only tokens that are a choice are penalised.

Source: A. Vijayakumar et al., "Diverse Beam Search: Decoding Diverse Solutions from Neural Sequence Models" (2016,
arXiv 1610.02424), with their Hamming diversity; one group is ordinary beam search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampling.protocol import Sample, Samples, check_score
from structgen.decode.step.distribution import Distribution, descending

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches

__all__ = ["Beam"]

_SPARE: Final = 2
"""Candidates per beam of a group whose potentials are evaluated."""


@final
@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search for the most probable outputs.

    The rank of an output is ``log_p / steps ** length_penalty + score``: the model's log-probability of its tokens and
    EOS, their number, and the score of the potentials.  It is ``Sample.score`` and the weight.

    The search ends when no open prefix can reach the rank of the ``n`` complete outputs: log-probabilities only fall.

    Attributes:
        n: number of beams of all groups together.
        diversity: penalty of a candidate for each time that an earlier group takes the same token at the same position.
            It affects which beams are chosen, not the rank of outputs.
        groups: number of groups; more than one needs a ``diversity``.
        length_penalty: see above; 0 ranks by probability, and larger values favour longer outputs.
        score_bound: upper bound of the potentials' score of an output; infinity if there is none, and then the search
            ends only when every beam is complete or the budget is spent.

    Raises:
        ValueError: a number is out of range, or ``n`` is no multiple of ``groups``.

    Complexity: a forward pass for each prefix; for a ``PackedModel`` all beams share one.
    """

    n: int = 4
    diversity: float = 0.0
    groups: int = 1
    length_penalty: float = 0.0
    score_bound: float = 0.0

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the most probable outputs, weighted by the potentials, as far as beam search finds them"

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("groups", self.groups)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Beam: {name} must be an integer of at least 1; found {value!r}")
        if self.n % self.groups:
            raise ValueError(f"Beam: n must be a multiple of groups; found n={self.n} and groups={self.groups}")
        if not (math.isfinite(self.diversity) and self.diversity >= 0):
            raise ValueError(f"Beam: diversity must be finite and not negative; found {self.diversity!r}")
        if self.groups > 1 and self.diversity == 0:
            raise ValueError("Beam: without a diversity all groups find the same; set diversity=..., or groups=1")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"Beam: length_penalty must be finite; found {self.length_penalty!r}")
        if math.isnan(self.score_bound) or self.score_bound == -math.inf:
            raise ValueError(f"Beam: score_bound must be a number; found {self.score_bound!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; uses no random numbers."""
        return _BeamSearch(self, branches).samples()


class _BeamCandidate(NamedTuple):
    """A prefix with one of its next tokens."""

    rank: float  # without the diversity penalty
    beam: int  # index of the prefix among the live beams
    choice: int  # index of the token in the distribution


@final
@dataclass(eq=False, slots=True)
class _BeamGroup:
    """Beams that compete with each other."""

    live: list[Branch]  # open prefixes; another group may have the same
    finished: list[tuple[float, Branch]] = field(default_factory=list)  # complete outputs with ranks, the best first


@final
class _BeamSearch:
    """One search."""

    def __init__(self, sampler: Beam, branches: Branches) -> None:
        self._sampler = sampler
        self._branches = branches
        self._width = sampler.n // sampler.groups
        root = branches.root()
        self._longest = branches.remaining(root) + 1
        self._begun = len(root.hypothesis.tokens)
        self._groups = [_BeamGroup([root]) for _ in range(sampler.groups)]

    def samples(self) -> Samples:
        """Search to the end."""
        while live := self._live():
            self._step(live)
        outputs: dict[tuple[int, ...], tuple[float, Branch]] = {}
        for group in self._groups:
            for rank, branch in group.finished:
                outputs.setdefault(branch.hypothesis.tokens, (rank, branch))
        best_first = sorted(outputs.items(), key=lambda item: (-item[1][0], item[0]))
        return self._branches.samples(
            (Sample(self._branches.result(branch), rank, 1, rank) for _, (rank, branch) in best_first),
            particles=self._sampler.n,
        )

    def _live(self) -> list[Branch]:
        """The distinct prefixes of the groups whose search goes on; the others are dropped."""
        before = {id(branch): branch for group in self._groups for branch in group.live}
        for group in self._groups:
            if self._is_through(group):
                group.live = []
        needed = {id(branch): branch for group in self._groups for branch in group.live}
        for key, branch in before.items():
            if key not in needed:
                self._branches.drop(branch)
        return list(needed.values())

    def _is_through(self, group: _BeamGroup) -> bool:
        """Whether no prefix of a group can lead to an output that outranks its finished ones."""
        if len(group.finished) < self._width or not group.live:
            return not group.live
        return max(self._rank_bound(branch) for branch in group.live) <= group.finished[-1][0]

    def _rank_bound(self, branch: Branch) -> float:
        """Upper bound of the ranks of the outputs that begin with a prefix."""
        divisor = max(self._divisor(self._steps(branch)), self._divisor(self._longest))
        return branch.log_p / divisor + self._sampler.score_bound

    def _steps(self, branch: Branch) -> int:
        return len(branch.hypothesis.tokens) - self._begun

    def _rank(self, log_p: float, steps: int, score: float) -> float:
        return log_p / self._divisor(steps) + score

    def _divisor(self, steps: int) -> float:
        return math.pow(max(steps, 1), self._sampler.length_penalty)

    def _step(self, live: Sequence[Branch]) -> None:
        """Give every beam its next token."""
        rows = self._branches.logits(live)
        distributions = [
            self._branches.distribution(branch, logits, tilted=False) for branch, logits in zip(live, rows, strict=True)
        ]
        indices = {id(branch): index for index, branch in enumerate(live)}
        taken: Counter[int] = Counter()
        chosen: list[list[_BeamCandidate]] = []
        for group in self._groups:
            beams = [indices[id(branch)] for branch in group.live]
            mine = self._chosen(beams, live, distributions, taken)
            chosen.append(mine)
            taken.update(
                int(distributions[beam].ids[index]) for _, beam, index in mine if not distributions[beam].is_forced
            )
        choices: list[dict[int, None]] = [{} for _ in live]  # of each beam, in the order of the groups
        for mine in chosen:
            for _, beam, index in mine:
                choices[beam][index] = None
        children = {
            (beam, index): child
            for beam, branch in enumerate(live)
            for index, child in zip(
                choices[beam], self._branches.take(branch, distributions[beam], list(choices[beam])), strict=True
            )
        }
        for group, mine in zip(self._groups, chosen, strict=True):
            self._take(group, [children[beam, index] for _, beam, index in mine])

    def _chosen(
        self, beams: Sequence[int], live: Sequence[Branch], distributions: Sequence[Distribution], taken: Counter[int]
    ) -> list[_BeamCandidate]:
        """The candidates that a group takes: the best ones that go on, one for each beam, and those that end."""
        admitted: list[tuple[float, _BeamCandidate]] = []
        has_potentials = self._branches.evaluator.any
        needed = self._width * (_SPARE if has_potentials else 1)
        going_on = 0
        for diverse, candidate in self._candidates(beams, live, distributions, taken, needed):
            branch, distribution = live[candidate.beam], distributions[candidate.beam]
            token = int(distribution.ids[candidate.choice])
            gain = self._gain(branch, token) if has_potentials else 0.0
            if gain == -math.inf:
                continue
            admitted.append((diverse + gain, candidate._replace(rank=candidate.rank + gain)))
            going_on += not self._branches.is_stop(token)
            if going_on == needed:
                break
        admitted.sort(key=lambda item: -item[0])
        return self._best(admitted, distributions)

    def _best(
        self, admitted: Sequence[tuple[float, _BeamCandidate]], distributions: Sequence[Distribution]
    ) -> list[_BeamCandidate]:
        """The best candidates that go on, and the ends that rank before the last of them."""
        best: list[_BeamCandidate] = []
        going_on = 0
        for _, candidate in admitted:
            if going_on == self._width:
                break
            best.append(candidate)
            going_on += not self._branches.is_stop(int(distributions[candidate.beam].ids[candidate.choice]))
        return best

    def _candidates(
        self,
        beams: Sequence[int],
        live: Sequence[Branch],
        distributions: Sequence[Distribution],
        taken: Counter[int],
        needed: int,
    ) -> Iterator[tuple[float, _BeamCandidate]]:
        """All candidates with their ranks less the diversity penalty, the best first; about ``needed`` are used."""
        ranks, diverse, owners, indices = [], [], [], []
        for beam in beams:
            branch, distribution = live[beam], distributions[beam]
            steps = self._steps(branch) + (not distribution.ends)
            rank = (branch.log_p + distribution.log_p) / self._divisor(steps) + branch.score
            ranks.append(rank)
            diverse.append(rank - self._penalties(distribution, taken))
            owners.append(np.full(len(distribution), beam))
            indices.append(np.arange(len(distribution)))
        keys = np.concatenate(diverse) if diverse else np.zeros(0)
        if not len(keys):
            return
        all_ranks, all_owners, all_indices = map(np.concatenate, (ranks, owners, indices))
        for at in descending(keys, needed + len(beams)):
            if keys[at] > -math.inf:
                yield float(keys[at]), _BeamCandidate(float(all_ranks[at]), int(all_owners[at]), int(all_indices[at]))

    def _penalties(self, distribution: Distribution, taken: Counter[int]) -> NDArray[np.float64]:
        penalties = np.zeros(len(distribution))
        if taken and not distribution.is_forced:
            for token, count in taken.items():
                penalties[distribution.ids == token] = self._sampler.diversity * count
        return penalties

    def _gain(self, branch: Branch, token: int) -> float:
        """The change of the potentials' score by a token after a prefix."""
        evaluator = self._branches.evaluator
        if self._branches.is_stop(token):
            return evaluator.complete(branch.hypothesis) - branch.score
        return evaluator.prefix(branch.hypothesis.extended(token)) - branch.score

    def _take(self, group: _BeamGroup, children: Sequence[Branch]) -> None:
        """Give a group its new beams."""
        group.live = [child for child in children if child.finish_reason is None]
        for child in children:
            if child.finish_reason is None or child.score == -math.inf:
                continue
            check_score(child, self._sampler.score_bound)
            # EOS is a step too; a vocabulary may have none.
            steps = self._steps(child) + self._branches.has_eos
            group.finished.append((self._rank(child.log_p, steps, child.score), child))
        group.finished.sort(key=lambda item: (-item[0], item[1].hypothesis.tokens))
        del group.finished[self._width :]
