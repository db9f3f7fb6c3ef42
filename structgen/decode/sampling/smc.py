"""Sequential Monte Carlo: particles grow token by token, and are resampled by their weights.

Unlike in the published code, particles with the same tokens are one group: they share cache, mask and potentials, their
weights are averaged, and their next tokens are sampled together, one from each stratum of the distribution.

Source: A. Lew et al. (2023, arXiv 2306.03081) and J. Loula et al. (ICLR 2025, arXiv 2504.13139) for language models.
Estimates are unbiased whatever the resampling scheme: N. Chopin and O. Papaspiliopoulos, "An Introduction to Sequential
Monte Carlo" (2020), chapter 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampling.proposal import AWRS, RESAMPLING, Proposal, Resampling, as_proposal, resample
from structgen.decode.sampling.protocol import Round, Sample, Samples
from structgen.decode.step.distribution import log_mass
from structgen.decode.step.result import Step

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Twist
    from structgen.decode.step.sampler import Multinomial

__all__ = ["SMC"]


@final
@dataclass(frozen=True)
class SMC:
    """Sequential Monte Carlo.

    The weighted samples represent the target: the model's distribution given that the output is a string of the
    grammar, times the potentials.  The expectation of the sum of ``exp(log_weight)`` over the particles that wrote an
    output, divided by their number, is the target of the output.  One output sampled by normalised weight has nearly
    the distribution of the target, more nearly with more particles.

    Attributes:
        particles: number of particles.
        ess_threshold: particles are resampled if the effective sample size falls below this share of them; 0 never
            resamples (importance sampling), 1 resamples after every token.  Unless it is 0, the live particles are
            also thinned to one or none if all of them together weigh less than an average particle.
        resampling: the scheme: ``"multinomial"``, ``"stratified"``, ``"systematic"`` or ``"residual"``.
        proposal: samples the next token of a particle: ``AWRS(...)``, or ``Multinomial()``, which evaluates potentials
            for every token that the mask allows.
        lookahead: a twist, which the model does not run ahead for: resampling and proposals then prefer prefixes that
            are likely to be completed.  It cancels at the end, so the target stays the same.

    Raises:
        ValueError: a number is out of range, or the proposal is not lossless.
    """

    particles: int = 16
    ess_threshold: float = 0.5
    resampling: Resampling = "stratified"
    proposal: Proposal | Multinomial = field(default_factory=AWRS)
    lookahead: Twist | None = None

    lossless: ClassVar[bool] = True
    looks_ahead: ClassVar[bool] = True
    takes_best: ClassVar[bool] = False
    target: ClassVar[str] = "the model's distribution given the constraint, times the potentials"

    def __post_init__(self) -> None:
        if not isinstance(self.particles, int) or self.particles < 1:
            raise ValueError(f"SMC: particles must be an integer of at least 1; found {self.particles!r}")
        if not 0 <= self.ess_threshold <= 1:
            raise ValueError(f"SMC: ess_threshold must be in [0, 1]; found {self.ess_threshold!r}")
        if self.resampling not in RESAMPLING:
            raise ValueError(f"SMC: resampling must be one of {', '.join(RESAMPLING)}; found {self.resampling!r}")
        as_proposal(self.proposal)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        return _ParticleRun(self, branches, generator).samples()


@final
@dataclass(eq=False, slots=True)
class _ParticleGroup:
    """The particles of one branch."""

    branch: Branch
    log_weight: float  # log of the sum of their weights, without potentials and twist; they share it equally
    eves: NDArray[np.intp]  # for each particle the index of its ancestor at the start
    twist: float = 0.0  # log of the twist's estimate for the rest; 0 once the branch is finished

    @property
    def count(self) -> int:
        return len(self.eves)

    @property
    def log_total(self) -> float:
        """Log of the sum of their weights, with potentials and twist."""
        return self.log_weight + self.branch.score + self.twist

    @property
    def is_finished(self) -> bool:
        return self.branch.finish_reason is not None


@final
class _ParticleRun:
    """One run."""

    def __init__(self, sampler: SMC, branches: Branches, generator: np.random.Generator) -> None:
        self._sampler = sampler
        self._branches = branches
        self._generator = generator
        self._proposal = as_proposal(sampler.proposal)
        self._expectation = None if sampler.lookahead is None else sampler.lookahead.start()
        branches.expectation = self._expectation
        self._rounds: list[Round] = []
        count = sampler.particles
        root = _ParticleGroup(branches.root(), math.log(count), np.arange(count))
        root.twist = self._twist(root.branch)
        self._groups = [root]

    def samples(self) -> Samples:
        """Run to the end."""
        while live := [group for group in self._groups if not group.is_finished]:
            self._groups = [group for group in self._groups if group.is_finished] + self._grown(live)
            self._end_round()
        heaviest_first = sorted(self._groups, key=lambda group: (-group.log_total, group.branch.hypothesis.tokens))
        return self._branches.samples(
            (
                Sample(self._branches.result(group.branch), group.log_total, group.count, group.branch.score)
                for group in heaviest_first
            ),
            particles=self._sampler.particles,
            lossless=True,
            log_evidence=self._log_evidence(),
            standard_error=self._standard_error(),
            history=self._rounds,
        )

    def _grown(self, live: Sequence[_ParticleGroup]) -> list[_ParticleGroup]:
        """Give every particle its next token."""
        rows = self._branches.logits([group.branch for group in live], [group.count for group in live])
        return [grown for group, logits in zip(live, rows, strict=True) for grown in self._children(group, logits)]

    def _children(self, group: _ParticleGroup, logits: NDArray[np.float32]) -> list[_ParticleGroup]:
        branches, branch = self._branches, group.branch
        share = group.log_weight - math.log(group.count)
        if branches.ends_here(branch) and not len(branches.allowed(branch)):
            return self._weighed([_ParticleGroup(branches.finish(branch), group.log_weight, group.eves)])
        proposed = self._proposal.propose(branches, branch, logits, group.count, self._generator)
        by_token: dict[int, list[int]] = {}
        for index, each in enumerate(proposed):
            if each.token is not None:
                by_token.setdefault(each.token, []).append(index)
        steps, log_ps = [], []
        for token, indices in by_token.items():
            log_z = log_mass(np.array([proposed[index].log_weight for index in indices])) - math.log(len(indices))
            log_p, is_only = proposed[indices[0]].log_p, proposed[indices[0]].is_only
            steps.append(Step(None if branches.is_stop(token) else token, is_only, log_p - log_z, log_z))
            log_ps.append(log_p)
        children = branches.split(branch, steps, log_ps)
        return self._weighed(
            [
                _ParticleGroup(child, share + step.log_z + math.log(len(indices)), group.eves[indices])
                for child, step, indices in zip(children, steps, by_token.values(), strict=True)
                if step.log_z is not None
            ]
        )

    def _weighed(self, groups: list[_ParticleGroup]) -> list[_ParticleGroup]:
        """Set the twists of groups, and drop groups of weight zero."""
        weighed = []
        for group in groups:
            if not group.is_finished:
                group.twist = self._twist(group.branch)
            if group.log_total > -math.inf:
                weighed.append(group)
            else:
                self._branches.drop(group.branch)
        return weighed

    def _twist(self, branch: Branch) -> float:
        return 0.0 if self._expectation is None else self._expectation.log_h(branch)

    def _end_round(self) -> None:
        ess = self._ess()
        live = [group for group in self._groups if not group.is_finished]
        resampled = bool(live) and ess < self._sampler.ess_threshold * self._sampler.particles
        self._rounds.append(
            Round(
                live=sum(group.count for group in live),
                finished=sum(group.count for group in self._groups if group.is_finished),
                distinct=len(live),
                ess=ess,
                log_evidence=self._log_evidence(),
                resampled=resampled,
            )
        )
        if resampled:
            self._resample()
        elif self._sampler.ess_threshold:
            self._thin(live)

    def _thin(self, live: Sequence[_ParticleGroup]) -> None:
        """If all live particles together weigh less than an average one, retain one of them or none.

        Each is retained with a probability that keeps its expected weight.  So no forward passes are spent on particles
        that hardly count, such as one of weight e^-8 that writes blanks while all others are finished.
        """
        if not live or len(live) == len(self._groups):
            return
        totals = np.array([group.log_total for group in live])
        log_mean = self._log_evidence()
        expected = math.exp(log_mass(totals) - log_mean)  # their weight in average particles
        if expected >= 1:
            return
        survivor: _ParticleGroup | None = None
        if self._generator.random() < expected:
            survivor = live[int(resample(np.exp(totals - totals.max()), 1, "multinomial", self._generator)[0])]
            survivor.eves = self._generator.choice(survivor.eves, 1)
            survivor.log_weight += log_mean - survivor.log_total
        for group in live:
            if group is not survivor:
                self._branches.drop(group.branch)
        self._groups = [group for group in self._groups if group.is_finished or group is survivor]

    def _resample(self) -> None:
        """Resample the particles: their weights become equal, and keep their sum."""
        count = self._sampler.particles
        log_mean = self._log_evidence()
        totals, counts = self._totals(), self._counts()
        owners = np.repeat(np.arange(len(counts)), counts)
        weights = np.repeat(np.exp(totals - totals.max()) / counts, counts)
        chosen = resample(weights, count, self._sampler.resampling, self._generator)
        starts = np.cumsum(counts) - counts
        resampled = []
        for index, group in enumerate(self._groups):
            mine = chosen[owners[chosen] == index] - starts[index]
            if not len(mine):
                self._branches.drop(group.branch)
                continue
            group.eves = group.eves[mine]
            group.log_weight += log_mean + math.log(len(mine)) - group.log_total
            resampled.append(group)
        self._groups = resampled

    def _ess(self) -> float:
        if not self._groups:
            return 0.0
        totals = self._totals()
        weights = np.exp(totals - totals.max())
        return float(weights.sum() ** 2 / (weights**2 / self._counts()).sum())

    def _totals(self) -> NDArray[np.float64]:
        return np.array([group.log_total for group in self._groups])

    def _counts(self) -> NDArray[np.intp]:
        return np.array([group.count for group in self._groups])

    def _log_evidence(self) -> float:
        if not self._groups:
            return -math.inf
        return log_mass(self._totals()) - math.log(self._sampler.particles)

    def _standard_error(self) -> float | None:
        """Standard error from the variance of the final weight by ancestor; rather too large than too small.

        A. Lee and N. Whiteley, "Variance estimation in the particle filter" (2018), subtract the variance that
        multinomial resampling adds.  Other schemes add less, so that would underestimate their error.
        """
        count = self._sampler.particles
        if count == 1 or not self._groups:
            return None
        totals = self._totals()
        weights = np.exp(totals - totals.max())
        weights /= weights.sum()
        by_eve = np.zeros(count)
        for group, weight in zip(self._groups, weights, strict=True):
            np.add.at(by_eve, group.eves, weight / group.count)
        variance = (count * float((by_eve**2).sum()) - 1) / (count - 1)
        return math.sqrt(max(variance, 0.0))
