"""Numbers as grammars: ``minimum``, ``maximum``, their exclusive forms and ``multipleOf``, in exact decimals."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.frontends.json_schema.emit.decimal_interval import (
    Bound,
    DecimalPlaces,
    digit_run,
    integral_magnitudes,
    magnitudes,
    scientific_magnitudes,
    with_zero_fraction,
    zero_with_exponent,
)
from structgen.frontends.json_schema.emit.multiple_of import (
    MAX_MULTIPLE_STATES,
    WHOLE_DIGITS,
    multiples,
    multiples_bytes,
    multiples_states,
    remainders,
)
from structgen.frontends.json_schema.normal.scalar_assertion import MAX_BOUND_DIGITS, NumberAssertion, not_multiples
from structgen.frontends.json_schema.source.json_value import FRACTION, NUMBER
from structgen.frontends.json_schema.source.location import refused
from structgen.frontends.json_schema.term import alternatives, chain
from structgen.grammar.flattening import memory_of
from structgen.grammar.nodes import EMPTY, Choice, Complement, Grammar, Intersection, Literal
from structgen.memory_cache import NUMBERS, ContentCache, cached

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["equal_numbers", "number_term", "without_absorbed"]

_MINUS: Final = Literal(b"-")
_ZERO: Final = Literal(b"0")
_SHIFTS: Final = 8  # how far the point may be from the first digit before an exponent, where all forms are written
_ABSORB_STEPS: Final = 12  # to compare two disjuncts
_DIGIT_STEPS: Final = 20
_FEW: Final = 256
"""Multiples in an interval that are listed instead of using an automaton."""


def number_term(
    assertion: NumberAssertion | None,
    syntax: Syntax,
    origins: tuple[Location, ...],
    *,
    integral: bool,
    is_proof: bool = False,
) -> Grammar:
    """The numbers that ``assertion`` admits; with ``integral`` only those written as integers.

    For a proof of emptiness the term may be a superset.

    Raises:
        UnsupportedFeature: a bound or a step is too large for an automaton.
        LimitExceeded: the automata of the schema take more than ``Limits.steps``.
    """
    # In draft 4 an integer is a number without point and exponent.
    is_lexical = integral and any(location.resource.dialect.draft == 4 for location in origins)
    has_all_forms = syntax.policy.numbers == "all" and not is_lexical
    if assertion is None and integral and has_all_forms:
        return syntax.any_integral
    if assertion is None:
        return syntax.any_integer if integral else syntax.any_number
    if assertion.excluded:
        return alternatives(
            *(number_term(piece, syntax, origins, integral=integral, is_proof=is_proof) for piece in assertion.gaps())
        )
    interval = _Interval(
        _usable(assertion.lower, "minimum", origins),
        assertion.lower_open,
        _usable(assertion.upper, "maximum", origins),
        assertion.upper_open,
        syntax.policy.digits,
    )
    step, not_steps = assertion.step, not_multiples(assertion.step_of(integral=integral), assertion.not_steps)
    if not_steps is None:
        return EMPTY
    if step is not None and step.numerator == 1 and integral and has_all_forms:
        step = None  # every integer is a multiple
    if is_proof and (step is not None or not_steps):
        if step is not None and not interval.may_hold_multiple(Fraction(step.numerator) if integral else step):
            return EMPTY
        step, not_steps = None, ()
        interval = interval._replace(digits=_whole_digits(interval, max(interval.digits, WHOLE_DIGITS)))
    if step is not None:
        listed = _few_listed(interval, step, not_steps, integral=integral, has_all_forms=has_all_forms)
        if listed is not None:
            return listed
        if not _few_multiples(interval.lower, interval.upper, step, integral=integral):
            interval = _with_bounded_digits(interval, step, origins, integral=integral)
    for not_step in not_steps:
        _refuse_fine_bounds(interval, syntax.policy.digits, origins)
        interval = _with_bounded_digits(interval, not_step, origins, integral=integral)
    location, name = _culprit(origins, ("minimum", "maximum", "multipleOf"))
    bounds = [str(bound) for bound in (interval.lower, interval.upper) if bound is not None]
    location.counter(name)(_DIGIT_STEPS * sum(map(len, bounds)))  # made or cached
    key = interval, step, not_steps, integral, has_all_forms
    term = _term_cache.get(key)
    if term is None:
        term = (_all_forms if has_all_forms else _term)(interval, step, not_steps, integral=integral)
        known = multiples_bytes((step, *not_steps), _decimal_places(interval.digits, integral=integral))
        size = _DIGIT_BYTES * (interval.digits + sum(map(len, bounds))) + known if known else memory_of(term)
        _term_cache.put(key, term, _ENTRY_BYTES + size)
    return term


def without_absorbed(disjuncts: list[Disjunct]) -> list[Disjunct]:
    """The disjuncts without those whose numbers are all contained in another one, in all spellings.

    Disjuncts with the largest steps come first: if one is refused, no automaton was made for the others.

    Complexity: O(disjuncts ** 2) where several have ``multipleOf``, else O(disjuncts); counted.
    """
    stepped = [disjunct for disjunct in disjuncts if _is_stepped(disjunct)]
    if len(stepped) < 2:
        return disjuncts
    retained: list[Disjunct] = []
    for disjunct in stepped:
        disjunct.origins[0].counter("multipleOf")(_ABSORB_STEPS * len(retained))
        if not any(_absorbs(other, disjunct) for other in retained):
            retained = [other for other in retained if not _absorbs(disjunct, other)]
            retained.append(disjunct)
    absorbed = set(map(id, stepped)).difference(map(id, retained))
    left = [disjunct for disjunct in disjuncts if id(disjunct) not in absorbed]
    return sorted(left, key=_step_of, reverse=True)


def _step_of(disjunct: Disjunct) -> Fraction:
    return (disjunct.number.step if disjunct.number else None) or Fraction(0)


def _is_stepped(disjunct: Disjunct) -> bool:
    """Whether a disjunct has only numbers, whose digits are bounded because remainders are distinguished."""
    assertion, integral = disjunct.number, not disjunct.types & FRACTION
    if assertion is None or disjunct.types & ~NUMBER or disjunct.values or disjunct.refusals:
        return False
    return any(
        remainders(step, integral=integral) > 1 for step in (assertion.step, *assertion.not_steps) if step is not None
    ) and not (assertion.step and _few_multiples(assertion.lower, assertion.upper, assertion.step, integral=integral))


def _absorbs(disjunct: Disjunct, other: Disjunct) -> bool:
    """Whether all texts of ``other`` are texts of ``disjunct``, both with steps."""
    assertion, inner = disjunct.number, other.number
    if assertion is None or inner is None or disjunct.types != other.types:
        return False
    if _whole_digits(inner, WHOLE_DIGITS) > _whole_digits(assertion, WHOLE_DIGITS):
        return False
    return assertion.holds(inner, integral=not disjunct.types & FRACTION)


_ENTRY_BYTES: Final = 1 << 10
_DIGIT_BYTES: Final = 2_000  # of the terms for a digit of a bound or of a number
_term_cache: Final[ContentCache[Grammar]] = ContentCache(NUMBERS)


def _refuse_fine_bounds(interval: _Interval, policy_digits: int, origins: tuple[Location, ...]) -> None:
    """Refuse bounds with more digits after the point than are written: by the policy or another ``multipleOf``."""
    digits = interval.digits
    others = "raise JsonPolicy(digits=...)" if digits == policy_digits else "check it after generation"
    for bound, keyword in ((interval.lower, "minimum"), (interval.upper, "maximum")):
        if isinstance(bound, Decimal) and -_exponent(bound) > digits:
            refused(
                *_culprit(origins, (keyword,)),
                f"{bound!s:.60} has more than {digits} digits after the point, "
                "which is not enforced together with 'not' over 'multipleOf'",
                remedy=f"round the bound, or {others}",
            )


def _with_bounded_digits(
    interval: _Interval, step: Fraction, origins: tuple[Location, ...], *, integral: bool
) -> _Interval:
    """The interval with as many digits before the point as the remainders of ``step`` allow; counts its automaton."""
    count = remainders(step, integral=integral)
    if count <= 1:
        return interval._replace(digits=_whole_digits(interval, interval.digits))
    digits = _whole_digits(interval, WHOLE_DIGITS)
    location, name = _culprit(origins, ("multipleOf",))
    if count * digits > MAX_MULTIPLE_STATES:
        refused(
            location,
            name,
            f"multiples of {step} need an automaton of {count * digits} states; at most {MAX_MULTIPLE_STATES} are made",
            remedy=f"give 'minimum' and 'maximum' that leave at most {_FEW} multiples",
        )
    states = multiples_states(step, _decimal_places(digits, integral=integral))
    location.counter(name)(states + states * min(count, 10) // 2)  # about the microseconds, made or cached
    return interval._replace(digits=digits)


def _whole_digits(bounds: _Interval | NumberAssertion, least: int) -> int:
    """``least``, or the number of digits before the point that the bounds need."""
    return max(least, _min_digits(bounds.lower, 1), _min_digits(bounds.upper, -1))


def _usable(bound: int | Decimal | None, keyword: str, origins: tuple[Location, ...]) -> int | Decimal | None:
    """The bound, or ``None`` if it is beyond every number that can be written."""
    if bound is None:
        return None
    if isinstance(bound, int):
        is_far, is_fine = abs(bound) >= 10**MAX_BOUND_DIGITS, False
    else:
        exponent = bound.as_tuple().exponent
        is_far = bound.adjusted() >= MAX_BOUND_DIGITS
        is_fine = isinstance(exponent, int) and exponent < -MAX_BOUND_DIGITS
    if is_far and (bound > 0) == (keyword == "maximum"):
        return None
    if is_far or is_fine:
        location, name = _culprit(origins, (keyword, f"exclusive{keyword.capitalize()}"))
        refused(location, name, f"a bound with more than {MAX_BOUND_DIGITS} digits is not enforced")
    return bound


def _min_digits(bound: int | Decimal | None, sign: int) -> int:
    """The minimum number of digits before the point of numbers farther from zero than a bound."""
    if bound is None or bound * sign <= 0:
        return 0
    return 2 + (bound.adjusted() if isinstance(bound, Decimal) else len(str(abs(bound))))


def _exponent(bound: Decimal) -> int:
    exponent = bound.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _culprit(origins: tuple[Location, ...], keywords: tuple[str, ...]) -> tuple[Location, str]:
    for location in origins:
        for keyword in keywords:
            if isinstance(location.schema, dict) and keyword in location.schema:
                return location, keyword
    return origins[0], keywords[0]


def _few_listed(
    interval: _Interval, step: Fraction, not_steps: tuple[Fraction, ...], *, integral: bool, has_all_forms: bool
) -> Grammar | None:
    """The multiples of a step that is too large for an automaton, if they are few."""
    are_listed = not not_steps and _few_multiples(interval.lower, interval.upper, step, integral=integral)
    if are_listed or remainders(step, integral=integral) * WHOLE_DIGITS <= MAX_MULTIPLE_STATES:
        return None
    values = _multiples_in(interval, step, integral=integral)
    if values is None:
        return None
    left = [value for value in values if all(value % not_step for not_step in not_steps)]
    return _listed_forms(left, interval.digits, has_fraction=has_all_forms or not integral)


def _multiples_in(interval: _Interval, step: Fraction, *, integral: bool) -> list[Fraction] | None:
    """The multiples of an interval, if they are few."""
    if interval.lower is None or interval.upper is None:
        return None
    unit = Fraction(step.numerator) if integral else step
    lower, upper = Fraction(interval.lower), Fraction(interval.upper)
    first, last = ceil(lower / unit), floor(upper / unit)
    if last - first >= _FEW:
        return None
    values = [number * unit for number in range(first, last + 1)]
    is_outside = {lower: interval.lower_open, upper: interval.upper_open}
    return [value for value in values if not is_outside.get(value, False)]


def _listed_forms(values: list[Fraction], digits: int, *, has_fraction: bool) -> Grammar:
    """Numbers without exponents; with ``has_fraction`` also with trailing zeros, up to ``digits`` after the point."""
    terms = []
    for value in values:
        text = _decimal_text(abs(value))
        written: Grammar = Literal(text.encode())
        if has_fraction and "." in text:
            written = chain(written, digit_run(_ZERO, 0, max(digits - len(text.partition(".")[2]), 0)))
        elif has_fraction:
            written = with_zero_fraction(written, digits)
        terms += [] if value < 0 else [written]
        terms += [] if value > 0 else [chain(_MINUS, written)]
    return alternatives(*terms)


def _decimal_text(value: Fraction) -> str:
    """The text of a non-negative number with a finite expansion, without trailing zeros.

    >>> _decimal_text(Fraction(27, 4))
    '6.75'
    """
    places = 0
    while value.denominator > 1:
        value, places = value * 10, places + 1
    digits = str(value.numerator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def _few_multiples(lower: int | Decimal | None, upper: int | Decimal | None, step: Fraction, *, integral: bool) -> bool:
    if lower is None or upper is None or not integral:
        return False
    return (Fraction(upper) - Fraction(lower)) / step.numerator < _FEW


class _Interval(NamedTuple):
    """The bounds of an assertion, and how many digits may be written."""

    lower: int | Decimal | None
    lower_open: bool
    upper: int | Decimal | None
    upper_open: bool
    digits: int

    @property
    def is_empty(self) -> bool:
        """Whether no number is between the bounds."""
        if self.lower is None or self.upper is None:
            return False
        return self.lower > self.upper or (self.lower == self.upper and (self.lower_open or self.upper_open))

    def may_hold_multiple(self, step: Fraction) -> bool:
        """Whether a multiple of ``step`` is between the bounds, or there are fewer than two bounds."""
        if self.lower is None or self.upper is None:
            return True
        first, last = ceil(Fraction(self.lower) / step), floor(Fraction(self.upper) / step)
        first += self.lower_open and first * step == self.lower
        last -= self.upper_open and last * step == self.upper
        return first <= last


def _all_forms(
    interval: _Interval, step: Fraction | None, not_steps: tuple[Fraction, ...], *, integral: bool
) -> Grammar:
    """The numbers of an interval in all their forms; multiples without exponents."""
    digits = interval.digits
    if step is not None or not_steps:
        term = _term(interval, step, not_steps, integral=integral)
        return with_zero_fraction(term, digits) if integral and term is not EMPTY else term
    if interval.is_empty:
        return EMPTY
    numbers = _between(interval, DecimalPlaces(digits, digits), _SHIFTS)
    if not integral:
        return numbers
    integers = integral_magnitudes(digits)
    return Intersection((numbers, Choice((integers, chain(_MINUS, integers)))))


@cached(NUMBERS, memory_of)
def equal_numbers(value: int | Decimal, digits: int) -> Grammar:
    """All forms of one number."""
    interval = _Interval(value, lower_open=False, upper=value, upper_open=False, digits=digits)
    return _all_forms(interval, None, (), integral=False)


def _term(interval: _Interval, step: Fraction | None, not_steps: tuple[Fraction, ...], *, integral: bool) -> Grammar:
    places = _decimal_places(interval.digits, integral=integral)
    if integral:
        interval = interval._replace(
            lower=_ceiling(interval.lower, is_open=interval.lower_open),
            lower_open=False,
            upper=_floor(interval.upper, is_open=interval.upper_open),
            upper_open=False,
        )
        lower, upper = interval.lower, interval.upper
        if step is not None and lower is not None and upper is not None:
            unit = step.numerator
            first, last = -(-lower // unit), upper // unit
            if last - first < _FEW and not not_steps:
                return _listed(range(int(first * unit), int(last * unit) + 1, unit))
    if interval.is_empty:
        return EMPTY
    between = _between(interval, places, 0 if step is None and not not_steps and not integral else None)
    if between is EMPTY:
        return between
    for not_step in not_steps:
        between = Intersection((between, Complement(_signed(multiples(not_step, places)))))
    if step is None:
        return between
    if not interval.may_hold_multiple(step):
        return EMPTY
    stepped = _signed(multiples(step, places))
    is_free = interval.lower is None and interval.upper is None and not not_steps
    return stepped if is_free else Intersection((between, stepped))


def _decimal_places(digits: int, *, integral: bool) -> DecimalPlaces:
    return DecimalPlaces(digits, 0 if integral else digits)


def _signed(magnitudes: Grammar) -> Grammar:
    return Choice((magnitudes, chain(_MINUS, magnitudes)))


def _between(interval: _Interval, places: DecimalPlaces, shifts: int | None) -> Grammar:
    """The numbers of a nonempty interval; ``shifts`` are the allowed positions of the point; ``None``: no exponents."""
    lower, lower_open, upper, upper_open, digits = interval
    positive = negative = EMPTY
    if upper is None or upper >= 0:
        low = (lower, lower_open) if lower is not None and lower >= 0 else (0, False)
        positive = _side(low, (upper, upper_open), places, shifts)
    if lower is None or lower <= 0:
        low = (-upper, upper_open) if upper is not None and upper <= 0 else (0, False)
        high = None if lower is None else -lower
        negative = chain(_MINUS, _side(low, (high, lower_open), places, shifts))
    result = alternatives(positive, negative)
    if not shifts or (lower is not None and (lower > 0 or (lower == 0 and lower_open))):
        return result
    if upper is not None and (upper < 0 or (upper == 0 and upper_open)):
        return result
    zero = zero_with_exponent(digits)
    return alternatives(result, zero, chain(_MINUS, zero))


def _listed(values: range) -> Grammar:
    texts = [str(value).encode() for value in values]
    return Choice([Literal(text) for text in (*texts, *([b"-0"] if 0 in values else []))]) if texts else EMPTY


def _ceiling(bound: int | Decimal | None, *, is_open: bool) -> int | None:
    if bound is None:
        return None
    whole = int(bound.to_integral_value(ROUND_CEILING)) if isinstance(bound, Decimal) else bound
    return whole + 1 if is_open and whole == bound else whole


def _floor(bound: int | Decimal | None, *, is_open: bool) -> int | None:
    if bound is None:
        return None
    whole = int(bound.to_integral_value(ROUND_FLOOR)) if isinstance(bound, Decimal) else bound
    return whole - 1 if is_open and whole == bound else whole


@cached(NUMBERS, memory_of)
def _side(
    low: tuple[int | Decimal, bool], high: tuple[int | Decimal | None, bool], places: DecimalPlaces, shifts: int | None
) -> Grammar:
    """The magnitudes between two non-negative bounds."""
    lowest = Bound.of(low[0], is_open=low[1])
    highest = None if high[0] is None else Bound.of(high[0], is_open=high[1])
    if highest is not None and highest.whole == "0" and not highest.fraction and highest.is_open:
        return EMPTY
    needed = len(lowest.whole)
    whole = places.whole if needed < places.whole else needed + 1
    if highest is not None and len(highest.whole) > whole:
        highest = None  # more digits than can be written: it excludes nothing
    plain = magnitudes(lowest, highest, DecimalPlaces(whole, places.fraction))
    return plain if shifts is None else alternatives(plain, scientific_magnitudes(low, high, places.fraction, shifts))
