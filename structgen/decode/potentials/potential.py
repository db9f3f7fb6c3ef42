"""Potentials: scores of outputs, besides the probability of the model and the grammar.

``Potential`` scores prefixes and complete outputs; ``@structgen.potential`` makes one of a function of the output.

Source: A. Lew et al., "Sequential Monte Carlo Steering of Large Language Models using Probabilistic Programs" (2023,
arXiv 2306.03081); J. Loula et al., "Syntactic and Semantic Control of Large Language Models via Sequential Monte Carlo"
(ICLR 2025, arXiv 2504.13139).
"""

from __future__ import annotations

import codecs
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray

from structgen.engine import Constraint
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.engine.parse.captures import value_of
from structgen.errors import ArgumentError, VocabularyError, found

if TYPE_CHECKING:
    from structgen.engine import Matcher, Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = [
    "ConstraintPotential",
    "Hypothesis",
    "Lifted",
    "NoValue",
    "Over",
    "Potential",
    "Product",
    "Sees",
    "as_potential",
    "as_potentials",
    "potential",
]


@final
class Hypothesis:
    """An output, or a prefix of one; immutable.

    Attributes:
        tokens: the token ids, EOS left out.
        data: their bytes, special tokens left out.
        grammar: the grammar of the output.
        vocabulary: the vocabulary of the tokens.
    """

    __slots__ = ("_text", "data", "grammar", "tokens", "vocabulary")

    def __init__(
        self, grammar: Grammar, vocabulary: Vocabulary, tokens: tuple[int, ...] = (), data: bytes | None = None
    ) -> None:
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.tokens = tokens
        self.data = vocabulary.decode(tokens) if data is None else data
        self._text: str | None = None

    def extended(self, token: int) -> Hypothesis:
        """Return the hypothesis with one more token; O(length)."""
        return Hypothesis(
            self.grammar, self.vocabulary, (*self.tokens, token), self.data + self.vocabulary.decode([token])
        )

    @property
    def text(self) -> str:
        """The characters that are complete; bytes that are not UTF-8 become U+FFFD."""
        if self._text is None:
            self._text = codecs.getincrementaldecoder("utf-8")("replace").decode(self.data)
        return self._text

    def value(self) -> Any:
        """Return the value of a complete output: see ``structgen.engine.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    def __repr__(self) -> str:
        return f"Hypothesis({self.text!r}, {len(self.tokens)} tokens)"


Sees: TypeAlias = Literal["tokens", "bytes"]

_MAX_MATCHERS: Final = 256


class Potential(ABC):
    """A log-score of outputs: 0 leaves the model's probability as it is, minus infinity forbids the output.

    The contract, which ``structgen.testing.check_potential`` tests:

    - If ``prefix`` is minus infinity, so is ``prefix`` of every longer prefix, and ``complete``.
    - ``logw_next``, if it is not None, is the difference of scores that its docstring says.
    - The batch forms agree with the single ones, and the same hypothesis always has the same score.

    A subclass defines ``prefix`` and ``complete``.  For a function of the text, the bytes, the tokens or the parsed
    value there is :func:`structgen.potential`.
    """

    sees: Sees = "tokens"
    """What scores depend on.  With ``"bytes"``, outputs with the same bytes have the same score in any tokenization."""

    @property
    def name(self) -> str:
        """The name in messages."""
        return type(self).__name__

    @abstractmethod
    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """Score a prefix."""

    @abstractmethod
    def complete(self, hypothesis: Hypothesis, /) -> float:
        """Score a complete output."""

    def prefix_many(self, hypotheses: Sequence[Hypothesis], /) -> NDArray[np.float64]:
        """Score several prefixes, ``[len(hypotheses)]``; for potentials that are quicker in batches."""
        return np.array([self.prefix(each) for each in hypotheses], dtype=np.float64)

    def complete_many(self, hypotheses: Sequence[Hypothesis], /) -> NDArray[np.float64]:
        """Score several complete outputs, ``[len(hypotheses)]``."""
        return np.array([self.complete(each) for each in hypotheses], dtype=np.float64)

    def logw_next(self, hypothesis: Hypothesis, /) -> NDArray[np.float64] | None:
        """Return the score that each token adds to ``prefix``; for EOS, ``complete`` less ``prefix``; ``[V]``.

        None, the default, if this takes longer than to score sampled tokens.  Called only if ``prefix`` is not minus
        infinity.
        """
        return None

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """Return a mask row without some of the tokens that ``prefix`` forbids; None for no mask.

        A token in the mask may still be forbidden: ``prefix`` scores the sampled token.
        """
        return None

    def narrow(self, hypothesis: Hypothesis, row: NDArray[np.int32], /) -> None:
        """Take the tokens that ``allowed`` does not have out of ``row``: a mask of the grammar, or a part of one."""
        allowed = self.allowed(hypothesis)
        if allowed is not None:
            np.bitwise_and(row, allowed, out=row)

    def __mul__(self, other: Potential) -> Product:
        """The product of two potentials: scores are added."""
        if not isinstance(other, Potential):
            return NotImplemented
        return Product((self, other))


@final
class Product(Potential):
    """The product of potentials.  If one factor forbids an output, the factors after it are not evaluated.

    Args:
        factors: in the order of evaluation: cheap ones first.
    """

    def __init__(self, factors: Sequence[Potential]) -> None:
        flat: list[Potential] = []
        for factor in factors:
            flat.extend(factor.factors if isinstance(factor, Product) else [factor])
        self.factors: tuple[Potential, ...] = tuple(flat)
        self.sees = "tokens" if any(factor.sees == "tokens" for factor in flat) else "bytes"

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return " * ".join(factor.name for factor in self.factors) or "1"

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return _sum_until_forbidden(factor.prefix(hypothesis) for factor in self.factors)

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return _sum_until_forbidden(factor.complete(hypothesis) for factor in self.factors)

    def logw_next(self, hypothesis: Hypothesis, /) -> NDArray[np.float64] | None:
        """See ``Potential``: None unless all factors have it."""
        total: NDArray[np.float64] | None = None
        for factor in self.factors:
            weights = factor.logw_next(hypothesis)
            if weights is None:
                return None
            total = weights if total is None else total + weights
        return total

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """See ``Potential``."""
        row: NDArray[np.int32] | None = None
        for factor in self.factors:
            other = factor.allowed(hypothesis)
            if other is not None:
                row = other if row is None else row & other
        return row


def _sum_until_forbidden(scores: Any) -> float:
    total = 0.0
    for score in scores:
        total += score
        if total == -math.inf:
            break
    return total


@final
class ConstraintPotential(Potential):
    """A constraint as a potential: 0 for its strings and their prefixes, minus infinity for anything else.

    For the intersection of two languages that are not regular, which no grammar can express.

    Args:
        constraint: compiled for the model's vocabulary.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._matchers: OrderedDict[tuple[int, ...], Matcher] = OrderedDict()

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return repr(self.constraint)

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return -math.inf if self._at(hypothesis) is None else 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        matcher = self._at(hypothesis)
        return 0.0 if matcher is not None and matcher.is_accepting else -math.inf

    def logw_next(self, hypothesis: Hypothesis, /) -> NDArray[np.float64] | None:
        """See ``Potential``."""
        weights = np.full(self.constraint.vocabulary.size, -np.inf)
        weights[allowed_ids(self.allowed(hypothesis), len(weights))] = 0.0
        return weights

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32]:
        """See ``Potential``: the mask of the constraint."""
        rows = empty_masks(self.constraint.vocabulary)
        matcher = self._at(hypothesis)
        if matcher is not None:
            matcher.fill_mask(rows)
        row: NDArray[np.int32] = rows[0]
        return row

    def _at(self, hypothesis: Hypothesis) -> Matcher | None:
        """The matcher after the tokens; None if it refuses one."""
        if hypothesis.vocabulary.digest != self.constraint.vocabulary.digest:
            raise VocabularyError(
                f"potential {self.name}",
                "its constraint was compiled for another vocabulary, not for that of the model",
                evidence=f"{self.constraint.vocabulary!r}, not {hypothesis.vocabulary!r}",
                remedy="compile its grammar with model.vocabulary",
            )
        tokens = hypothesis.tokens
        cached = self._matchers.get(tokens)
        if cached is not None:
            self._matchers.move_to_end(tokens)
            return cached
        start = self._matchers.get(tokens[:-1]) if tokens else None
        matcher = self.constraint.matcher() if start is None else start.fork()
        rest = tokens if start is None else tokens[-1:]
        if not all(matcher.accept(token) for token in rest):
            return None
        self._matchers[tokens] = matcher
        if len(self._matchers) > _MAX_MATCHERS:
            self._matchers.popitem(last=False)
        return matcher


Over: TypeAlias = Literal["text", "bytes", "tokens", "value"]
Score: TypeAlias = Callable[[Any], "bool | float"]


class NoValue(Exception):
    """An output has no value, because the validators of its type refuse it; the output is forbidden then."""


_VIEWS: Final[dict[str, Callable[[Hypothesis], Any]]] = {
    "text": lambda hypothesis: hypothesis.text,
    "bytes": lambda hypothesis: hypothesis.data,
    "tokens": lambda hypothesis: hypothesis.tokens,
    "value": lambda hypothesis: hypothesis.value(),
}


@final
class Lifted(Potential):
    """A potential from functions ``over`` one view of an output; made by :func:`potential`.

    ``score`` scores complete outputs, ``early`` prefixes; None allows all prefixes.
    """

    def __init__(self, score: Score, over: Over, early: Score | None, name: str) -> None:
        self._score = score
        self._view = _VIEWS[over]
        self._early = early
        self._name = name
        self.over = over
        self.sees = "tokens" if over == "tokens" else "bytes"

    @property
    def name(self) -> str:
        """See ``Potential``: the name of the function."""
        return self._name

    @property
    def is_one_function(self) -> bool:
        """Whether the same function scores prefixes and complete outputs."""
        return self._early is self._score

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return 0.0 if self._early is None else _log(self._early(self._view(hypothesis)))

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        try:
            subject = self._view(hypothesis)
        except NoValue:
            return -math.inf
        return _log(self._score(subject))

    def reading(self, value: Callable[[bytes], Any]) -> Lifted:
        """Return the same potential with ``value`` to parse outputs; ``value`` may raise ``NoValue``."""
        if self.over != "value":
            return self
        copy = Lifted(self._score, self.over, self._early, self._name)
        copy._view = lambda hypothesis: value(hypothesis.data)
        return copy

    def early(self, score: Score) -> Lifted:
        """Return the potential with ``score`` as the score of prefixes; for use as a decorator.

        Raises:
            ValueError: it is over values, which prefixes do not have.
        """
        if self.over == "value":
            raise ValueError(f"potential {self.name}: a prefix has no value; use over='text' and parse the prefix")
        return Lifted(self._score, self.over, score, self._name)

    def __call__(self, subject: Any) -> bool | float:
        """Call the function for complete outputs."""
        return self._score(subject)


@overload
def potential(score: Score, /) -> Lifted: ...
@overload
def potential(*, over: Over = "text", always: bool = False) -> Callable[[Score], Lifted]: ...


def potential(
    score: Score | None = None, /, *, over: Over = "text", always: bool = False
) -> Lifted | Callable[[Score], Lifted]:
    """Make a potential from a function that returns whether an output is allowed, or a score.

    True leaves the probability of an output as it is, and False forbids it.  A number is added to its log-probability.
    The function must be pure: its result for a common prefix is shared by several outputs.

    Args:
        score: the function, if this is used as a decorator without arguments.
        over: its argument: the text, the bytes, the token ids, or the parsed value.
        always: whether it scores prefixes too.  If it forbids a prefix, it must forbid every output that begins so.

    Raises:
        ValueError: ``over`` is none of these, or ``always`` is given with ``over="value"``.

    Example:
        >>> @potential
        ... def rhymes(text: str) -> bool:
        ...     return text.endswith("ight")
        >>> @potential(over="value")
        ... def in_order(value) -> bool:
        ...     return value["start"] < value["end"]
        >>> @potential(always=True)
        ... def without_e(text: str) -> bool:
        ...     return "e" not in text
    """
    if over not in _VIEWS:
        raise ValueError(f"potential: over must be one of {', '.join(_VIEWS)}; found {over!r}")

    def lift(function: Score) -> Lifted:
        lifted = Lifted(function, over, None, getattr(function, "__name__", repr(function)))
        return lifted.early(function) if always else lifted

    return lift if score is None else lift(score)


def as_potential(subject: Potential | Constraint | Score) -> Potential:
    """Return ``subject`` as a potential: a constraint, or a function of the text of a complete output.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(subject, Potential):
        return subject
    if isinstance(subject, Constraint):
        return ConstraintPotential(subject)
    if callable(subject):
        return potential(subject)
    raise TypeError(f"potentials: expected a Potential, a Constraint or a function, found {type(subject).__name__}")


def as_potentials(subjects: Iterable[Potential | Constraint | Score]) -> list[Potential]:
    """Return a list of ``as_potential``.

    Raises:
        ArgumentError: it is no list, for instance one potential alone.
        TypeError: as ``as_potential``.
    """
    if callable(subjects) or not isinstance(subjects, Iterable):
        remedy = "put it into a list: potentials=[...]"
        raise ArgumentError("potentials", "expected a list", evidence=found(subjects), remedy=remedy)
    return [as_potential(subject) for subject in subjects]


def _log(score: Any) -> float:
    """The log-score of a function's result."""
    if score is True:
        return 0.0
    if score is False:
        return -math.inf
    return float(score)
