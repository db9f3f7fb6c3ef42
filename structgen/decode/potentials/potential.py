"""Potentials: what an output is worth beside what the model and the grammar say.

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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray

from structgen.decode.parse.captures import value_of
from structgen.engine import Constraint
from structgen.engine.mask import empty_masks
from structgen.errors import VocabularyError

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
    "potential",
]


@final
class Hypothesis:
    """The tokens of an output, or of its prefix; immutable.

    Attributes:
        tokens: their ids, EOS left out.
        data: their bytes, special tokens left out.
        grammar: what the output will be a member of.
        vocabulary: what the tokens belong to.
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
        """Return the value of a complete output: see ``structgen.decode.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    def __repr__(self) -> str:
        return f"Hypothesis({self.text!r}, {len(self.tokens)} tokens)"


Sees: TypeAlias = Literal["tokens", "bytes"]

_MAX_MATCHERS: Final = 256


class Potential(ABC):
    """A score of outputs, as a logarithm: 0 leaves the model's distribution as it is, minus infinity forbids.

    The distributions (``structgen.testing.check_potential`` tries them):

    - Where ``prefix`` is minus infinity, so is ``prefix`` of every longer prefix, and ``complete``.
    - ``logw_next``, where there is one, is the difference of scores that it is said to be.
    - The batch forms agree with the single ones, and the same hypothesis always has the same score.

    A subclass defines ``prefix`` and ``complete``.  For a function of the text, the bytes, the tokens or the parsed
    value there is :func:`structgen.potential`.
    """

    sees: Sees = "tokens"
    """What scores depend on: where it is ``"bytes"``, outputs that differ in their tokens alone share an answer."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @abstractmethod
    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """Score a prefix."""

    @abstractmethod
    def complete(self, hypothesis: Hypothesis, /) -> float:
        """Score a complete output."""

    def prefix_many(self, hypotheses: Sequence[Hypothesis], /) -> NDArray[np.float64]:
        """Score several prefixes, ``[len(hypotheses)]``; for those that are quicker at it together."""
        return np.array([self.prefix(each) for each in hypotheses], dtype=np.float64)

    def complete_many(self, hypotheses: Sequence[Hypothesis], /) -> NDArray[np.float64]:
        """Score several complete outputs, ``[len(hypotheses)]``."""
        return np.array([self.complete(each) for each in hypotheses], dtype=np.float64)

    def logw_next(self, hypothesis: Hypothesis, /) -> NDArray[np.float64] | None:
        """Return what each token adds to ``prefix``, and each EOS what ``complete`` adds to it, ``[V]``.

        None, which is the usual, where that would take longer than to ask about the tokens that are drawn.  Called
        only where ``prefix`` is not minus infinity.
        """
        return None

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """Return a row of a mask without some of the tokens that ``prefix`` forbids; None where it knows of none.

        What is in the row may be forbidden all the same: ``prefix`` is asked about what is drawn.
        """
        return None

    def __mul__(self, other: Potential) -> Product:
        """The product of both: scores are added."""
        if not isinstance(other, Potential):
            return NotImplemented
        return Product((self, other))


@final
class Product(Potential):
    """Several potentials as one.  What one of them forbids is forbidden, and those after it are not asked.

    Args:
        factors: in the order in which they are asked: cheap ones first.
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
        """See ``Potential``: where all factors have it."""
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
    """A constraint as a potential: 0 for its members and what may become one, minus infinity for the rest.

    For the intersection of two languages that are not regular, which no grammar can state.

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
        size = self.constraint.vocabulary.size
        bits = np.unpackbits(self.allowed(hypothesis).view(np.uint8), count=size, bitorder="little")
        return np.where(bits.view(np.bool_), 0.0, -np.inf)

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32]:
        """See ``Potential``: all that it forbids."""
        rows = empty_masks(self.constraint.vocabulary)
        matcher = self._at(hypothesis)
        if matcher is not None:
            matcher.fill_mask(rows)
        row: NDArray[np.int32] = rows[0]
        return row

    def _at(self, hypothesis: Hypothesis) -> Matcher | None:
        """The matcher after the tokens; None where it refuses one."""
        if hypothesis.vocabulary.digest != self.constraint.vocabulary.digest:
            raise VocabularyError(
                f"potential {self.name}",
                "its constraint was compiled for another vocabulary than that of the model",
                evidence=f"{self.constraint.vocabulary!r}, not {hypothesis.vocabulary!r}",
                remedy="compile its grammar with model.vocabulary",
            )
        tokens = hypothesis.tokens
        known = self._matchers.get(tokens)
        if known is not None:
            self._matchers.move_to_end(tokens)
            return known
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
    """An output has no value, because the checks of its type refuse it: it is forbidden then."""


_VIEWS: Final[dict[str, Callable[[Hypothesis], Any]]] = {
    "text": lambda hypothesis: hypothesis.text,
    "bytes": lambda hypothesis: hypothesis.data,
    "tokens": lambda hypothesis: hypothesis.tokens,
    "value": lambda hypothesis: hypothesis.value(),
}


@final
class Lifted(Potential):
    """A potential from functions; made by :func:`potential`.

    Args:
        score: of complete outputs.
        over: what the functions are given.
        early: of prefixes; None where nothing is known before the end.
        name: what messages call it.
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
        """Whether the same function judges prefixes and complete outputs."""
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
        """Return the same potential, which takes the values of outputs from ``value``; it may raise ``NoValue``."""
        if self.over != "value":
            return self
        reference = Lifted(self._score, self.over, self._early, self._name)
        reference._view = lambda hypothesis: value(hypothesis.data)
        return reference

    def early(self, score: Score) -> Lifted:
        """Return the potential with ``score`` as what is known of prefixes; for use as a decorator.

        Raises:
            ValueError: it is over values, which prefixes do not have.
        """
        if self.over == "value":
            raise ValueError(f"potential {self.name}: a prefix has no value; take over='text' and parse what is there")
        return Lifted(self._score, self.over, score, self._name)

    def __call__(self, subject: Any) -> bool | float:
        """Call the function that it was made from."""
        return self._score(subject)


@overload
def potential(score: Score, /) -> Lifted: ...
@overload
def potential(*, over: Over = "text", always: bool = False) -> Callable[[Score], Lifted]: ...


def potential(
    score: Score | None = None, /, *, over: Over = "text", always: bool = False
) -> Lifted | Callable[[Score], Lifted]:
    """Make a potential of a function, which returns whether an output is wanted, or a score.

    True leaves the probability of an output as it is and False forbids it.  A number is added to its log-probability.
    The function must be pure: it is asked once about what several outputs have in common.

    Args:
        score: the function, where this is used as a decorator without arguments.
        over: what it is given: the text, its bytes, the ids of its tokens, or the parsed value.
        always: whether it can judge prefixes too.  What it forbids then must not become allowed by what follows.

    Raises:
        ValueError: another word than those for ``over``, or ``always`` with ``over="value"``.

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


def _log(score: Any) -> float:
    """The logarithm that a function's answer stands for."""
    if score is True:
        return 0.0
    if score is False:
        return -math.inf
    return float(score)
