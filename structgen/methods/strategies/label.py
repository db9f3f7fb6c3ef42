"""Exact probabilities of labels, and answers decided from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, final

import numpy as np

from structgen.decode.potentials import as_potentials
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
"""The label of a text; several texts may have the same."""

_BATCH: Final = 16
"""Prefixes that are extended in one forward pass."""


@final
@dataclass(frozen=True)
class LabelDistribution:
    """The probability of each label.

    Under the model's distribution given the grammar and the budget, times the potentials.

    Attributes:
        probabilities: of the labels, the most probable first; they sum to 1.
        log_mass: log of the target's sum over the visited outputs: the probability that the model alone writes one of
            them.
        missing: an upper bound on the share of unvisited outputs, and so on the error of each probability.
        followed: prefixes that the model was run on.
    """

    probabilities: Mapping[Any, float]
    log_mass: float
    missing: float
    followed: int


@final
@dataclass(frozen=True, slots=True)
class Decide:
    """Answers the label that a rule decides for, given the exact probabilities of all labels.

    All outputs are enumerated, the probable ones first, in every tokenization, and the probabilities of those with the
    same label are summed. The answer is the most probable output with the label; if the decision is a set, there is one
    for each label in it. ``log_weight`` is the log of the label's probability.

    Attributes:
        rule: decides; see ``structgen.methods.strategies.decision_rule``.
        label: the label of a text, by default the text itself; a number for rules about numbers.
        tolerance: the share of the probability that may remain unvisited; 0 visits everything.
        limit: the maximal number of prefixes that the model is run on.

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
        """See ``SequenceSampler``; uses no random numbers.

        Raises:
            LimitExceeded: there are too many prefixes.
            GenerationError: the decision is no label of an output, and no set of such labels; or as always.
            ValueError: the labels are of a wrong kind for the rule.
        """
        search = _LabelSearch(branches, self.label, "Decide")
        search.run(self.tolerance, self.limit)
        if not search.best:
            return outcome(branches, [])
        distribution = search.distribution()
        decision = self.rule.decide(distribution.probabilities)
        labels = decision if isinstance(decision, frozenset) else [decision]
        answered = [label for label in distribution.probabilities if label in labels]
        if len(answered) < len(labels):
            raise GenerationError(
                "Decide",
                "the rule decides for a label that no output has",
                evidence=f"{decision!r}; labels are {list(distribution.probabilities)[:8]!r}",
                remedy="let label return what the rule decides among, or apply the rule to label_distribution(...)",
            )
        ranked = [(search.best[label], math.log(distribution.probabilities[label])) for label in answered]
        return outcome(branches, ranked, particles=len(ranked))


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
    """Return the probability of each label as the answer to ``prompt``: see ``LabelDistribution``.

    Args:
        model: the language model.
        prompt: as for ``generate``.
        grammar: of the texts with labels; it should have few strings.
        label: the label of a text.
        potentials: as for ``sample``; scores must be at most 0.
        max_tokens: the maximal number of tokens of an output.
        tolerance: see ``Decide``.
        limit: see ``Decide``.
        chat: as for ``generate``.
        limits: likewise.

    Raises:
        ValueError: a number is out of range.
        LimitExceeded: there are too many prefixes.
        GenerationError: no output has a positive probability; or as ``generate``.
        BudgetError, VocabularyError, GrammarError, ModelError: as ``generate``.
    """
    _check_tolerance("label_distribution", tolerance)
    at_least("label_distribution", 1, limit=limit)
    constraint = constraint_of(grammar, model, limits)
    ids = tuple(model.encode_prompt(prompt, chat=chat))
    check_start(model, len(ids), constraint, max_tokens)
    problem = Problem(model, ids, constraint, tuple(as_potentials(potentials)), max_tokens)
    with Branches(problem) as branches:
        search = _LabelSearch(branches, label, "label_distribution")
        search.run(tolerance, limit)
        if not search.best:
            raise GenerationError(
                "label_distribution", "no output has a positive probability", evidence=branches.culprits
            )
        return search.distribution()


@final
class _LabelSearch:
    """The visited outputs by label, and the prefixes left.

    Attributes:
        best: the most probable output of each label; of equal ones the first by tokens.
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

    def run(self, tolerance: float, limit: int) -> None:
        """Extend the most probable prefixes until the others have at most ``tolerance`` of the probability.

        Raises:
            LimitExceeded: more than ``limit`` prefixes have to be extended.
        """
        root = self._branches.root()
        self._branches.drop(root)
        self._leave(root)
        while self._left and not self._is_enough(tolerance):
            taken = [self._take() for _ in range(min(_BATCH, len(self._left)))]
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
        sums = {label: math.fsum(masses) for label, masses in self._masses.items()}
        whole, missing = math.fsum(sums.values()), self._missing()
        ordered = sorted(sums, key=lambda label: -sums[label])
        probabilities = {label: sums[label] / whole for label in ordered}
        return LabelDistribution(
            MappingProxyType(probabilities), math.log(whole), missing / (whole + missing), self._followed
        )

    def _note(self, branch: Branch) -> None:
        if branch.score == -math.inf:
            return
        if branch.finish_reason is None:
            self._leave(branch)
            return
        check_score(branch, 0.0)
        mass = math.exp(branch.log_p + branch.score)
        if not mass:
            return
        label = self._label(branch.hypothesis.text)
        best = self.best.get(label)
        if best is None or _rank(branch) < _rank(best):
            self.best[label] = branch
        self._masses.setdefault(label, []).append(mass)
        self._sum += mass

    def _leave(self, branch: Branch) -> None:
        heappush(self._left, (-branch.log_p, branch.hypothesis.tokens, branch))
        self._left_sum += math.exp(branch.log_p)

    def _take(self) -> Branch:
        branch = heappop(self._left)[-1]
        self._left_sum -= math.exp(branch.log_p)
        return branch

    def _is_enough(self, tolerance: float) -> bool:
        """Whether the prefixes left have at most ``tolerance`` of all; their sum is then recomputed to confirm."""
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
            evidence=f"{len(self._left) + taken} prefixes are left; mass visited: {self._sum:.3g}, left: {left:.3g}",
            remedy="raise limit or tolerance, or make the grammar or max_tokens smaller",
        )


def _rank(branch: Branch) -> tuple[float, tuple[int, ...]]:
    return -branch.log_p - branch.score, branch.hypothesis.tokens


def _check_tolerance(owner: str, tolerance: float) -> None:
    if not 0 <= tolerance < 1:
        raise ValueError(f"{owner}: tolerance must be in [0, 1); found {tolerance!r}")
