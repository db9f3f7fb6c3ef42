"""Labels by their exact probabilities, and answers decided from these."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, final

import numpy as np

from structgen.decode.potentials import as_potential
from structgen.decode.sampling.branch import Branch
from structgen.decode.sampling.branch_set import Branches
from structgen.decode.sampling.protocol import Problem, check_score
from structgen.decode.step.context import check_start, constraint_of
from structgen.errors import GenerationError, LimitExceeded
from structgen.methods.strategies.branch_ops import at_least, outcome
from structgen.methods.strategies.decision_rule import MostProbable, Rule

if TYPE_CHECKING:
    from structgen.decode.potentials import Potential
    from structgen.decode.potentials.potential import Score
    from structgen.decode.sampling.protocol import Samples
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.protocol import LanguageModel, Prompt

__all__ = ["Decide", "LabelDistribution", "LabelOf", "label_distribution"]

LabelOf: TypeAlias = Callable[[str], Hashable]
"""What a text stands for; several texts may stand for the same."""

_TOGETHER: Final = 16
"""Prefixes that are followed in one forward pass."""


@final
@dataclass(frozen=True)
class LabelDistribution:
    """How probable each label is.

    Under the model's distribution given the grammar and the budget, times the potentials.

    Attributes:
        probabilities: of the labels, the most probable first; they sum to 1.
        log_mass: log of the sum of the target over all outputs found: of the probability that the model alone writes
            one of them.
        missing: the share of all that was not looked at, at most: each probability is right within it.
        followed: prefixes that were run through the model.
    """

    probabilities: Mapping[Any, float]
    log_mass: float
    missing: float
    followed: int


@final
@dataclass(frozen=True, slots=True)
class Decide:
    """Answers the label that a rule decides for, by the exact probabilities of all labels.

    All outputs are gone through, the probable ones first, with every division of their text into tokens, and the
    probabilities of those that stand for the same label are summed.  The answer is the most probable output with the
    label; where the decision is a set there is one for each label in it.  ``log_weight`` is the log of the
    label's probability.

    Attributes:
        rule: decides; see ``structgen.methods.strategies.decisions``.
        label: what a text stands for, the text itself by default; a number for rules about numbers.
        tolerance: the share of the probability that need not be looked at; 0 goes through everything.
        limit: the most prefixes that are run through the model.

    Raises:
        ValueError: a number is out of range.
    """

    rule: Rule = field(default_factory=MostProbable)
    label: LabelOf = str
    tolerance: float = 1e-6
    limit: int = 10_000

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the decision of the highest expected utility, by the target's exact label probabilities"

    def __post_init__(self) -> None:
        _check_tolerance("Decide", self.tolerance)
        at_least("Decide", 1, limit=self.limit)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number.

        Raises:
            LimitExceeded: there are too many prefixes.
            GenerationError: the decision is no label that an output has, and no set of such; or as always.
            ValueError: the labels are not of the kind that the rule is about.
        """
        found = _LabelSearch(branches, self.label, "Decide")
        found.search(self.tolerance, self.limit)
        if not found.best:
            return outcome(branches, [])
        distribution = found.distribution()
        decision = self.rule.decide(distribution.probabilities)
        labels = decision if isinstance(decision, frozenset) else [decision]
        answered = [label for label in distribution.probabilities if label in labels]
        if len(answered) < len(labels):
            raise GenerationError(
                "Decide",
                "the rule decides for what no output stands for",
                evidence=f"{decision!r}; labels are {list(distribution.probabilities)[:8]!r}",
                remedy="let label give what the rule decides among, or take label_law and apply the rule to it",
            )
        ranked = [(found.best[label], math.log(distribution.probabilities[label])) for label in answered]
        return outcome(branches, ranked, drawn=len(ranked))


def label_distribution(  # noqa: PLR0913  as sample; each of them is a keyword with a default
    model: LanguageModel,
    prompt: Prompt,
    grammar: Grammar | Constraint,
    *,
    label: LabelOf = str,
    potentials: Sequence[Potential | Constraint | Score] = (),
    max_tokens: int = 256,
    tolerance: float = 1e-6,
    limit: int = 10_000,
    chat: bool = True,
    limits: Limits | None = None,
) -> LabelDistribution:
    """Return how probable each label is as the answer to ``prompt``: see ``LabelDistribution``.

    Args:
        model: the language model.
        prompt: as for ``generate``.
        grammar: of the texts that stand for labels; there must be few of them.
        label: what a text stands for.
        potentials: as for ``sample``; none may give more than 0.
        max_tokens: the most tokens of an output.
        tolerance: see ``Decide``.
        limit: see ``Decide``.
        chat: as for ``generate``.
        limits: likewise.

    Raises:
        ValueError: a number is out of range.
        LimitExceeded: there are too many prefixes.
        GenerationError: no output has any probability; or as ``generate``.
        BudgetError, VocabularyError, GrammarError, ModelError: as ``generate``.
    """
    _check_tolerance("label_distribution", tolerance)
    at_least("label_distribution", 1, limit=limit)
    constraint = constraint_of(grammar, model, limits)
    ids = tuple(model.encode_prompt(prompt, chat=chat))
    check_start(model, len(ids), constraint, max_tokens)
    problem = Problem(model, ids, constraint, tuple(as_potential(each) for each in potentials), max_tokens)
    with Branches(problem) as branches:
        found = _LabelSearch(branches, label, "label_distribution")
        found.search(tolerance, limit)
        if not found.best:
            raise GenerationError("label_distribution", "no output has any probability", evidence=branches.verification)
        return found.distribution()


@final
class _LabelSearch:
    """The outputs that were found, by labels, and the prefixes that are left.

    Attributes:
        best: for each label the most probable output; of equally probable ones that whose tokens come first in order.
    """

    def __init__(self, branches: Branches, label: LabelOf, owner: str) -> None:
        self.best: dict[Hashable, Branch] = {}
        self._branches = branches
        self._label = label
        self._owner = owner
        self._masses: dict[Hashable, list[float]] = {}
        self._sum = 0.0
        self._followed = 0
        self._left: list[tuple[float, tuple[int, ...], Branch]] = []  # the most probable first
        self._left_sum = 0.0  # up to rounding

    def search(self, tolerance: float, limit: int) -> None:
        """Follow the most probable prefixes until the others have no more than ``tolerance`` of all.

        Raises:
            LimitExceeded: more than ``limit`` prefixes have to be followed.
        """
        root = self._branches.root()
        self._branches.drop(root)
        self._leave(root)
        while self._left and not self._is_enough(tolerance):
            taken = [self._take() for _ in range(min(_TOGETHER, len(self._left)))]
            self._followed += len(taken)
            if self._followed > limit:
                raise self._too_many(limit, len(taken))
            for branch, logits in zip(taken, self._branches.logits_at(taken), strict=True):
                distribution = self._branches.distribution(branch, logits, tilted=False)
                for index in np.flatnonzero(distribution.log_p > -np.inf).tolist():
                    self._note(
                        self._branches.grown(
                            branch, distribution, int(distribution.ids[index]), float(distribution.log_p[index])
                        )
                    )

    def distribution(self) -> LabelDistribution:
        """The distribution of the labels."""
        sums = {mark: math.fsum(masses) for mark, masses in self._masses.items()}
        whole, missing = math.fsum(sums.values()), self._missing()
        ordered = sorted(sums, key=lambda mark: -sums[mark])
        probabilities = {mark: sums[mark] / whole for mark in ordered}
        return LabelDistribution(
            MappingProxyType(probabilities), math.log(whole), missing / (whole + missing), self._followed
        )

    def _note(self, branch: Branch) -> None:
        if branch.score == -math.inf:
            return
        if branch.finish_reason is None:
            self._leave(branch)
            return
        check_score(self._branches, branch, 0.0)
        mass = math.exp(branch.log_p + branch.score)
        if not mass:
            return
        mark = self._label(branch.hypothesis.text)
        known = self.best.get(mark)
        if known is None or _rank(branch) < _rank(known):
            self.best[mark] = branch
        self._masses.setdefault(mark, []).append(mass)
        self._sum += mass

    def _leave(self, branch: Branch) -> None:
        heappush(self._left, (-branch.log_p, branch.hypothesis.tokens, branch))
        self._left_sum += math.exp(branch.log_p)

    def _take(self) -> Branch:
        branch = heappop(self._left)[-1]
        self._left_sum -= math.exp(branch.log_p)
        return branch

    def _is_enough(self, tolerance: float) -> bool:
        """Whether what is left has at most ``tolerance`` of all; its sum is taken anew before that is believed."""
        if not tolerance or self._left_sum > tolerance * self._sum:
            return False
        self._left_sum = self._missing()
        return self._left_sum <= tolerance * self._sum

    def _missing(self) -> float:
        return math.fsum(math.exp(-negative) for negative, _, _ in self._left)

    def _too_many(self, limit: int, taken: int) -> LimitExceeded:
        left = self._left_sum
        return LimitExceeded(
            self._owner,
            limit="limit",
            maximum=limit,
            evidence=f"{len(self._left) + taken} prefixes are left; found so far: {self._sum:.3g}, left: {left:.3g}",
            remedy="raise limit or tolerance, or make the grammar or max_tokens smaller",
        )


def _rank(branch: Branch) -> tuple[float, tuple[int, ...]]:
    return -branch.log_p - branch.score, branch.hypothesis.tokens


def _check_tolerance(owner: str, tolerance: float) -> None:
    if not 0 <= tolerance < 1:
        raise ValueError(f"{owner}: tolerance must be in [0, 1); found {tolerance!r}")
