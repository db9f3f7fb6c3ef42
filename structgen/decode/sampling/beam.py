"""Beam search: the best prefixes of each length, side by side, in groups that keep out of each other's way.

Scores are those of the model's own distribution, not of what a mask leaves of it, so what is found is an approximation
of the most probable members.  Diversity counts only where the grammar leaves a choice.

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
"""Where potentials judge prefixes, so many times as many candidates are judged as a group has beams."""


@final
@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search for the most probable outputs.

    An output is ranked by ``log_p / steps ** length_penalty + score``: the model's log-probability of its tokens and
    its stop, how many these are, and what the potentials say.  That is ``Sample.score``, and the weight.

    The search ends when no prefix that is left can come before the ``n`` outputs that were found, since
    log-probabilities only fall.

    Attributes:
        n: how many beams, all groups together.
        diversity: taken off the score of a candidate for each time that an earlier group takes the same token at the
            same place.  It serves the choice of beams only, and is not part of the ranking.
        groups: how many groups the beams are divided into; more than one needs a ``diversity``.
        length_penalty: see above; 0 ranks by probability, and more favours longer outputs.
        score_bound: the most that the potentials give to any output; infinity, if that is not known, and then the
            search ends only where every beam is complete or the budget is spent.

    Raises:
        ValueError: a number is out of range, or the beams cannot be divided into the groups.

    Complexity: a forward pass for each prefix of the beam, of all beams together where the model can.
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
        """See ``SequenceSampler``; draws no random number."""
        return _BeamSearch(self, branches).samples()


class _BeamCandidate(NamedTuple):
    """A prefix with one of its choices.

    Attributes:
        rank: what it is compared by, without diversity.
        beam: of the prefix, among those that are live.
        choice: its index.
    """

    rank: float
    beam: int
    choice: int


@final
@dataclass(eq=False, slots=True)
class _BeamGroup:
    """Beams that compete with each other.

    Attributes:
        live: prefixes; another group may have the same.
        finished: complete outputs with their ranks, the best first.
    """

    live: list[Branch]
    finished: list[tuple[float, Branch]] = field(default_factory=list)


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
        found: dict[tuple[int, ...], tuple[float, Branch]] = {}
        for group in self._groups:
            for rank, branch in group.finished:
                found.setdefault(branch.hypothesis.tokens, (rank, branch))
        best_first = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
        return self._branches.samples(
            (Sample(self._branches.result(branch), rank, 1, rank) for _, (rank, branch) in best_first),
            particles=self._sampler.n,
        )

    def _live(self) -> list[Branch]:
        """The prefixes of all groups that can still find something, each once; the others are dropped."""
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
        """Whether nothing that a group's prefixes lead to can come before what it has."""
        if len(group.finished) < self._width or not group.live:
            return not group.live
        most = max(self._most(branch) for branch in group.live)
        return most <= group.finished[-1][0]

    def _most(self, branch: Branch) -> float:
        """What an output that begins so is ranked by at most."""
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
        places = {id(branch): place for place, branch in enumerate(live)}
        taken: Counter[int] = Counter()
        chosen: list[list[_BeamCandidate]] = []
        for group in self._groups:
            beams = [places[id(branch)] for branch in group.live]
            mine = self._chosen(beams, live, distributions, taken)
            chosen.append(mine)
            taken.update(
                int(distributions[beam].ids[index]) for _, beam, index in mine if not distributions[beam].is_forced
            )
        wanted: dict[int, dict[int, float]] = {beam: {} for beam in range(len(live))}
        for mine in chosen:
            for rank, beam, index in mine:
                wanted[beam][index] = rank
        children = {
            (beam, index): child
            for beam, branch in enumerate(live)
            for index, child in zip(
                wanted[beam], self._branches.take(branch, distributions[beam], list(wanted[beam])), strict=True
            )
        }
        for group, mine in zip(self._groups, chosen, strict=True):
            self._take(group, [children[beam, index] for _, beam, index in mine])

    def _chosen(
        self, beams: Sequence[int], live: Sequence[Branch], distributions: Sequence[Distribution], taken: Counter[int]
    ) -> list[_BeamCandidate]:
        """The candidates that a group goes on with: as many as it has beams, and beside them those that stop."""
        admitted: list[tuple[float, _BeamCandidate]] = []
        has_potentials = self._branches.questions.any
        wanted = self._width * (_SPARE if has_potentials else 1)
        going_on = 0
        for diverse, candidate in self._candidates(beams, live, distributions, taken, wanted):
            branch, distribution = live[candidate.beam], distributions[candidate.beam]
            token = int(distribution.ids[candidate.choice])
            gain = self._gain(branch, token) if has_potentials else 0.0
            if gain == -math.inf:
                continue
            admitted.append((diverse + gain, candidate._replace(rank=candidate.rank + gain)))
            going_on += not self._branches.is_stop(token)
            if going_on == wanted:
                break
        admitted.sort(key=lambda item: -item[0])
        return self._best(admitted, distributions)

    def _best(
        self, admitted: Sequence[tuple[float, _BeamCandidate]], distributions: Sequence[Distribution]
    ) -> list[_BeamCandidate]:
        """The best that go on, and the stops before the last of them."""
        found: list[_BeamCandidate] = []
        going_on = 0
        for _, candidate in admitted:
            if going_on == self._width:
                break
            found.append(candidate)
            going_on += not self._branches.is_stop(int(distributions[candidate.beam].ids[candidate.choice]))
        return found

    def _candidates(
        self,
        beams: Sequence[int],
        live: Sequence[Branch],
        distributions: Sequence[Distribution],
        taken: Counter[int],
        wanted: int,
    ) -> Iterator[tuple[float, _BeamCandidate]]:
        """All candidates, the best by probability and diversity first; with the rank that they have by that."""
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
        for at in descending(keys, wanted + len(beams)):
            if keys[at] > -math.inf:
                yield float(keys[at]), _BeamCandidate(float(all_ranks[at]), int(all_owners[at]), int(all_indices[at]))

    def _penalties(self, distribution: Distribution, taken: Counter[int]) -> NDArray[np.float64]:
        penalties = np.zeros(len(distribution))
        if taken and not distribution.is_forced:
            for token, count in taken.items():
                penalties[distribution.ids == token] = self._sampler.diversity * count
        return penalties

    def _gain(self, branch: Branch, token: int) -> float:
        """What a choice adds to the potentials' score of a prefix."""
        questions = self._branches.questions
        if self._branches.is_stop(token):
            return questions.complete(branch.hypothesis) - branch.score
        return questions.prefix(branch.hypothesis.extended(token)) - branch.score

    def _take(self, group: _BeamGroup, children: Sequence[Branch]) -> None:
        """Give a group its new beams."""
        group.live = [child for child in children if child.finish_reason is None]
        for child in children:
            if child.finish_reason is None or child.score == -math.inf:
                continue
            check_score(self._branches, child, self._sampler.score_bound)
            # The stop is a step too; without EOS there is none.
            steps = self._steps(child) + self._branches.has_eos
            group.finished.append((self._rank(child.log_p, steps, child.score), child))
        group.finished.sort(key=lambda item: (-item[0], item[1].hypothesis.tokens))
        del group.finished[self._width :]
