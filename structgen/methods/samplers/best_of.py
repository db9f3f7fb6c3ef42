"""Best-of-N: several outputs are sampled, and a score chooses one.

Self-certainty is computed on the model's own distribution, since a mask makes every distribution look certain, and only
where the grammar leaves a choice, since dictated text says nothing about the answer.

Source: Z. Kang, X. Zhao and D. Song, "Scalable Best-of-N Selection for Large Language Models via Self-Certainty" (2025,
arXiv 2502.18581), for the self-certainty and the vote.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, final

import numpy as np

from structgen.decode.sampling.proposal import AWRS
from structgen.decode.sampling.protocol import Sample, Samples
from structgen.decode.step.distribution import log_mass
from structgen.decode.step.result import Result
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.models.protocol import Logits

__all__ = ["BestOf", "self_certainty"]

OutputScore: TypeAlias = "Literal['self_certainty', 'logprob'] | Callable[[Result], float]"


def _text(result: Result) -> str:
    return result.text


@final
@dataclass(frozen=True, slots=True)
class BestOf:
    """The best of several outputs.

    Outputs are sampled by locally constrained decoding: token by token from the tokens that the constraint and the
    potentials allow, renormalised.  Outputs with the same prefix share it, and their next tokens are sampled from equal
    strata of the distribution: each output is as frequent on average as if sampled independently, and the outputs are
    more diverse.

    The samples are ordered by ``Sample.score``.

    Attributes:
        n: number of outputs.
        score: the score, higher is better: ``"self_certainty"``, the mean over the choices of the divergence from the
            uniform distribution to the model's; ``"logprob"``, the model's log-probability of the output; or a function
            of the result.  An output with score minus infinity is left out.
        vote: None takes the output with the highest score.  A number lets each output give ``(n - rank + 1) ** vote``
            votes to its answer, rank 1 being the highest score; the best output of the answer with most votes is
            taken, and weights are votes.
        answer: the answer of a result, for the vote; by default its text.

    Raises:
        ValueError: a number is out of range, or there is no such score.
    """

    n: int = 8
    score: OutputScore = "self_certainty"
    vote: float | None = None
    answer: Callable[[Result], Hashable] = _text

    lossless: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = True
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the best of several outputs of locally constrained decoding"

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise ValueError(f"BestOf: n must be an integer of at least 1; found {self.n!r}")
        if self.score not in ("self_certainty", "logprob") and not callable(self.score):
            raise ValueError(
                f"BestOf: score must be 'self_certainty', 'logprob' or a function of a result; found {self.score!r}"
            )
        if self.vote is not None and not (math.isfinite(self.vote) and self.vote >= 0):
            raise ValueError(f"BestOf: vote must be None, or finite and not negative; found {self.vote!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``.

        Raises:
            GenerationError: the score raises an error or is no number.
        """
        finished = _sampled_branches(branches, self.n, generator)
        scored = [self._scored(branches, each) for each in finished]
        samples = [sample for sample in scored if sample.score > -math.inf]
        samples.sort(key=lambda sample: (-sample.score, sample.result.tokens))
        if self.vote is not None:
            samples = self._voted(samples, self.vote)
        return branches.samples(samples, particles=self.n)

    def _scored(self, branches: Branches, written: _WrittenBranch) -> Sample:
        result = branches.result(written.branch)
        if self.score == "self_certainty":
            score = written.certainty / max(written.choices, 1)
        elif self.score == "logprob":
            score = written.branch.log_p
        else:
            score = self._called(result)
        return Sample(result, score, written.count, score)

    def _called(self, result: Result) -> float:
        function: Any = self.score
        try:
            score = float(function(result))
        except Exception as error:
            raise GenerationError(
                "score",
                f"it raised {type(error).__name__}: {error}",
                evidence=f"for {result.text!r}",
                remedy="make it return a score for every string of the grammar",
            ) from error
        if math.isnan(score) or score == math.inf:
            raise GenerationError(
                "score", f"it gives {score}", evidence=f"for {result.text!r}", remedy="return a finite number, or -inf"
            )
        return score

    def _voted(self, samples: Sequence[Sample], power: float) -> list[Sample]:
        """The ranked ``samples`` with votes as weights, those of the answer with most votes first."""
        votes: dict[Hashable, float] = {}
        answers = [self.answer(sample.result) for sample in samples]
        total = sum(sample.particles for sample in samples)
        rank = 0
        for sample, answer in zip(samples, answers, strict=True):
            for _ in range(sample.particles):  # equal outputs each have a vote
                rank += 1
                votes[answer] = votes.get(answer, 0.0) + math.pow(total - rank + 1, power)
        order = sorted(range(len(samples)), key=lambda index: -votes[answers[index]])
        return [
            Sample(samples[at].result, math.log(votes[answers[at]]), samples[at].particles, samples[at].score)
            for at in order
        ]


def self_certainty(logits: Logits) -> float:
    """The Kullback-Leibler divergence in nats from the uniform distribution to the distribution of ``logits``.

    It is 0 for a uniform distribution and grows with certainty.  Tokens of probability zero, such as the padding of a
    vocabulary, are left out of both distributions: one of them would make every divergence infinite.

    Args:
        logits: unnormalised log-probabilities, ``[V]``.
    """
    possible = logits[logits > -np.inf].astype(np.float64)
    return log_mass(possible) - float(possible.mean()) - math.log(len(possible)) if len(possible) else 0.0


@final
@dataclass(eq=False, slots=True)
class _WrittenBranch:
    """``count`` outputs with the same tokens; ``certainty`` is the sum of the self-certainty over their choices."""

    branch: Branch
    count: int
    certainty: float = 0.0
    choices: int = 0


def _sampled_branches(branches: Branches, count: int, generator: np.random.Generator) -> list[_WrittenBranch]:
    """Sample outputs together; those that potentials leave no way to complete are missing."""
    live, finished = [_WrittenBranch(branches.root(), count)], list[_WrittenBranch]()
    while live:
        rows = branches.logits([each.branch for each in live], [each.count for each in live])
        grown = [
            child
            for each, logits in zip(live, rows, strict=True)
            for child in _children(branches, each, logits, generator)
        ]
        live = [each for each in grown if each.branch.finish_reason is None]
        finished += [each for each in grown if each.branch.finish_reason is not None]
    return finished


def _children(
    branches: Branches, written: _WrittenBranch, logits: Logits, generator: np.random.Generator
) -> list[_WrittenBranch]:
    branch = written.branch
    distribution = branches.distribution(branch, logits)
    if not distribution.is_forced:
        written.certainty += self_certainty(logits)
        written.choices += 1
    sampled = AWRS().draw_from(distribution, branches, branch, written.count, generator)
    counts = Counter(distribution.index(each.token) for each in sampled if each.token is not None)
    children = branches.take(branch, distribution, list(counts))
    return [
        _WrittenBranch(child, count, written.certainty, written.choices)
        for child, count in zip(children, counts.values(), strict=True)
        if child.score > -math.inf
    ]
