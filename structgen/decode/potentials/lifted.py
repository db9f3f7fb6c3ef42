"""Functions of an output as potentials: ``@structgen.potential``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final, overload

from structgen.decode.potentials.potential import ConstraintPotential, Potential
from structgen.engine import Constraint

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Hypothesis

__all__ = ["Lifted", "NoValue", "Over", "as_potential", "potential"]

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
        early: of beginnings; None where nothing is known before the end.
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
        """Whether the same function judges beginnings and complete outputs."""
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
        twin = Lifted(self._score, self.over, self._early, self._name)
        twin._view = lambda hypothesis: value(hypothesis.data)
        return twin

    def early(self, score: Score) -> Lifted:
        """Return the potential with ``score`` as what is known of beginnings; for use as a decorator.

        Raises:
            ValueError: it is over values, which beginnings do not have.
        """
        if self.over == "value":
            raise ValueError(
                f"potential {self.name}: a beginning has no value; take over='text' and parse what is there"
            )
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
        always: whether it can judge beginnings too.  What it forbids then must not become allowed by what follows.

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
