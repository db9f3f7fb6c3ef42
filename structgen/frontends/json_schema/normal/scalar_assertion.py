"""Assertions about numbers and strings: bounds, divisors, lengths, patterns and formats.

Numbers are exact decimals; lengths and patterns apply to the decoded string.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import TYPE_CHECKING, Final

from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import ANY_STRING, belongs, matching_strings, united
from structgen.grammar.nodes import ANY_CHAR, EMPTY, Complement, Grammar, Intersection, JsonString, Repeat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structgen.frontends.json_schema.formats.user_format import StringFormat

__all__ = ["NumberAssertion", "StringAssertion", "common_multiple", "exact", "implies", "not_multiples", "string_term"]


def common_multiple(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple.

    >>> common_multiple(Fraction(3, 2), Fraction(5))
    Fraction(15, 1)
    """
    return Fraction(
        lcm(one.numerator * other.denominator, other.numerator * one.denominator), one.denominator * other.denominator
    )


def not_multiples(step: Fraction | None, not_steps: Collection[Fraction]) -> tuple[Fraction, ...] | None:
    """The simplest numbers that exclude the same multiples of ``step``; ``None``: they exclude all.

    >>> not_multiples(Fraction(33), [Fraction(6), Fraction(8), Fraction(10)])
    (Fraction(2, 1),)
    >>> not_multiples(Fraction(120), [Fraction(8)]) is None
    True
    """
    if step is None:
        minimal = {one for one in not_steps if not any(_divides(other, one) and other != one for other in not_steps)}
        return tuple(sorted(minimal))
    quotients = {(one / step).numerator: one for one in sorted(not_steps, reverse=True)}
    if 1 in quotients:
        return None
    least = [one for one in quotients if not any(one % other == 0 and one != other for other in quotients)]
    return tuple(sorted(_reduced(quotients[one], one) for one in least))


def implies(step: Fraction | None, not_steps: Collection[Fraction], other: Fraction) -> bool:
    """Whether multiples of ``step`` that are multiples of no ``not_steps`` are not multiples of ``other`` either."""
    both = other if step is None else common_multiple(step, other)
    return any(_divides(one, both) for one in not_steps)


def _divides(one: Fraction, other: Fraction) -> bool:
    return (other / one).denominator == 1


def _reduced(one: Fraction, quotient: int) -> Fraction:
    """``one`` without the primes that do not divide ``quotient``, if it is an integer."""
    if one.denominator != 1:
        return one
    rest = one.numerator
    while (common := gcd(rest, quotient)) > 1:
        rest //= common
    return one / rest


MAX_BOUND_DIGITS: Final = 400
"""Digits of a bound on either side of the point; the largest double has 309."""


@dataclass(slots=True, eq=False)
class NumberAssertion:
    """A set of numbers: the multiples of a step in an interval, with exclusions.

    Attributes:
        lower, upper: the bounds, or ``None``.
        lower_open, upper_open: whether the bound itself is excluded.
        step: every number is a multiple of this.
        not_steps: no number is a multiple of any of these.
        excluded: no number equals any of these.
    """

    lower: int | Decimal | None = None
    lower_open: bool = False
    upper: int | Decimal | None = None
    upper_open: bool = False
    step: Fraction | None = None
    not_steps: tuple[Fraction, ...] = ()
    excluded: tuple[int | Decimal, ...] = ()

    def raise_lower(self, bound: int | Decimal | None, *, is_open: bool) -> None:
        """Exclude the numbers below ``bound``."""
        if bound is None or (self.lower is not None and bound < self.lower):
            return
        self.lower_open = is_open or (bound == self.lower and self.lower_open)
        self.lower = bound

    def drop_upper(self, bound: int | Decimal | None, *, is_open: bool) -> None:
        """Exclude the numbers above ``bound``."""
        if bound is None or (self.upper is not None and bound > self.upper):
            return
        self.upper_open = is_open or (bound == self.upper and self.upper_open)
        self.upper = bound

    def divide(self, step: Fraction | None) -> None:
        """Exclude the numbers that are not multiples of ``step``."""
        if step is not None and self.step is not None:
            step = common_multiple(step, self.step)
        self.step = step or self.step

    def meet(self, other: NumberAssertion) -> NumberAssertion:
        """The numbers in both."""
        both = NumberAssertion()
        for assertion in (self, other):
            both.raise_lower(assertion.lower, is_open=assertion.lower_open)
            both.drop_upper(assertion.upper, is_open=assertion.upper_open)
            both.divide(assertion.step)
            both.not_steps += assertion.not_steps
            both.excluded += assertion.excluded
        return both

    def complement(self) -> list[NumberAssertion]:
        """The numbers outside, as a union."""
        others: list[NumberAssertion] = []
        if self.lower is not None:
            others.append(NumberAssertion(upper=self.lower, upper_open=not self.lower_open))
        if self.upper is not None:
            others.append(NumberAssertion(lower=self.upper, lower_open=not self.upper_open))
        if self.step is not None:
            others.append(NumberAssertion(not_steps=(self.step,)))
        others += [NumberAssertion(step=step) for step in self.not_steps]
        others += [NumberAssertion(lower=value, upper=value) for value in self.excluded]
        return others

    def admits(self, value: float | Decimal) -> bool:
        """Whether ``value`` is in the set."""
        number = exact(value)
        if self.lower is not None and (number < self.lower or (self.lower_open and number == self.lower)):
            return False
        if self.upper is not None and (number > self.upper or (self.upper_open and number == self.upper)):
            return False
        if any(number == value for value in self.excluded):
            return False
        if any((Fraction(number) / step).denominator == 1 for step in self.not_steps):
            return False
        return self.step is None or (Fraction(number) / self.step).denominator == 1

    def gaps(self) -> list[NumberAssertion]:
        """The same numbers as a union of intervals without ``excluded`` numbers."""
        marks = sorted(set(self.excluded))
        pieces: list[NumberAssertion] = []
        for below, above in zip([None, *marks], [*marks, None], strict=True):
            piece = replace(self, excluded=())
            piece.raise_lower(below, is_open=True)
            piece.drop_upper(above, is_open=True)
            pieces.append(piece)
        return pieces

    def step_of(self, *, integral: bool) -> Fraction | None:
        """The step of the numbers; with ``integral`` of the integers among them."""
        if not integral:
            return self.step
        return common_multiple(self.step or Fraction(1), Fraction(1))

    def holds(self, other: NumberAssertion, *, integral: bool) -> bool:
        """Whether bounds and divisibility show that it contains ``other``; with ``integral`` its integers."""
        if self.lower is not None:
            if other.lower is None or other.lower < self.lower:
                return False
            if other.lower == self.lower and self.lower_open and not other.lower_open:
                return False
        if self.upper is not None:
            if other.upper is None or other.upper > self.upper:
                return False
            if other.upper == self.upper and self.upper_open and not other.upper_open:
                return False
        step = other.step_of(integral=integral)
        if self.step is not None and (step is None or (step / self.step).denominator != 1):
            return False
        if any(other.admits(value) for value in self.excluded):
            return False
        return all(implies(step, other.not_steps, not_step) for not_step in self.not_steps)

    def without_integers(self) -> NumberAssertion:
        """The same numbers without the integers."""
        return replace(self, not_steps=(*self.not_steps, Fraction(1)))


def exact(value: float | Decimal) -> int | Decimal:
    """The exact value of a number in a schema; a float means its shortest decimal form."""
    if isinstance(value, int):
        return int(value)
    return Decimal(repr(value)) if isinstance(value, float) else value


@dataclass(slots=True, eq=False)
class StringAssertion:
    """A set of strings: a range of lengths in code points, and regular languages.

    Attributes:
        shortest, longest: the bounds on the length; ``longest`` is ``None`` without a bound.
        languages: the languages that all contain the decoded text.
        formats: the formats of the text, each with the schema that requires it.
    """

    shortest: int = 0
    longest: int | None = None
    languages: tuple[Grammar, ...] = ()
    formats: dict[StringFormat, Location] = field(default_factory=dict)

    @property
    def is_contradictory(self) -> bool:
        """Whether the bounds on the length exclude each other."""
        return self.longest is not None and self.shortest > self.longest

    def meet(self, other: StringAssertion) -> StringAssertion:
        """The strings in both."""
        bounds = [assertion.longest for assertion in (self, other) if assertion.longest is not None]
        return StringAssertion(
            max(self.shortest, other.shortest),
            min(bounds, default=None),
            united(self.languages, other.languages),
            self.formats | other.formats,
        )

    def complement(self) -> list[StringAssertion]:
        """The strings outside, as a union; for a format that is not regular, only those certainly outside.

        Raises:
            UnsupportedFeature: a format has no regular superset, so no string is certainly outside.
        """
        if self.is_contradictory:
            return [StringAssertion()]
        for one, location in self.formats.items():
            if one.unbounded:
                refused(location, "format", f"'not' over format {one.name!r}, {one.unbounded}, is not enforced")
        result = [StringAssertion(longest=self.shortest - 1)] if self.shortest > 0 else []
        if self.longest is not None:
            result.append(StringAssertion(shortest=self.longest + 1))
        parts = self.all_languages(is_proof=True)
        if parts:
            outside = Complement(parts[0] if len(parts) == 1 else Intersection(parts))
            result.append(StringAssertion(languages=(outside,)))
        return result

    def admits(self, text: str, origin: Location) -> bool:
        """Whether ``text`` is in the set, on behalf of a schema.

        Raises:
            LimitExceeded: this takes more than ``Limits.steps``.
            UnsupportedFeature: whether it has a format cannot be decided.
        """
        if len(text) < self.shortest or (self.longest is not None and len(text) > self.longest):
            return False
        count = origin.counter("pattern")
        if not all(belongs(text, language, count) for language in self.languages):
            return False
        for one, location in self.formats.items():
            is_member = one.admits(text)
            if is_member is None:
                refused(location, "format", f"whether {text!r:.60} is a {one.name} cannot be decided")
            if not is_member:
                return False
        return True

    def admitted(self, texts: Iterable[str], origin: Location) -> frozenset[str]:
        """The ``texts`` that are in the set, on behalf of a schema.

        Raises:
            LimitExceeded: this takes more than ``Limits.steps``.
            UnsupportedFeature: whether one of them has a format cannot be decided.
        """
        left = frozenset(texts)
        for language in self.languages:  # most texts are decided here, all at once
            left = matching_strings(left, language, origin.counter("pattern"))
        return frozenset(text for text in left if self.admits(text, origin))

    def all_languages(self, *, is_proof: bool = False) -> list[Grammar]:
        """The languages of patterns and formats; for a proof of emptiness supersets of the formats.

        Raises:
            UnsupportedFeature: the language of a format is not regular.
        """
        if is_proof:
            return [*self.languages, *(one.outer for one in self.formats)]
        for one, location in self.formats.items():
            if not one.is_regular:
                refused(
                    location,
                    "format",
                    f"format {one.name!r}, which is not regular, is not combined with lengths, patterns, other formats "
                    "or names",
                    remedy="say it in the grammar of the format, or write that without recursion",
                )
        return [*self.languages, *(one.language for one in self.formats)]


def string_term(assertion: StringAssertion | None, longest: int | None = None, *, is_proof: bool = False) -> Grammar:
    """The JSON strings in ``assertion``, up to ``longest``; for a proof of emptiness perhaps a superset."""
    if assertion is None:
        return _strings_of_length(0, longest)
    if longest is not None:
        assertion = assertion.meet(StringAssertion(longest=longest))
    if assertion.is_contradictory:
        return EMPTY
    is_bounded = assertion.shortest > 0 or assertion.longest is not None
    if not is_bounded and not assertion.languages and len(assertion.formats) == 1 and not is_proof:
        return next(iter(assertion.formats)).string
    parts = assertion.all_languages(is_proof=is_proof)
    if not parts:
        return _strings_of_length(assertion.shortest, assertion.longest)
    if is_bounded:
        parts.append(Repeat(ANY_CHAR, assertion.shortest, assertion.longest))
    return JsonString(parts[0] if len(parts) == 1 else Intersection(parts))


@lru_cache(maxsize=1024)
def _strings_of_length(shortest: int, longest: int | None) -> Grammar:
    if shortest == 0 and longest is None:
        return ANY_STRING
    return JsonString(Repeat(ANY_CHAR, shortest, longest))
