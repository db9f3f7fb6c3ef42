"""Any text, up to the first place where a stop stands.

The first occurrence of ``stop`` in a text is the one that ends first.  Texts that hold none are ``~(any* stop any*)``,
and texts that end with the first one are ``any* stop & ~(any* stop any+)``: terms of boolean operators, whose states
the engine makes as they are met.  (A chain of the states of Knuth, Morris and Pratt as rules has the same members, and
a first mask that takes a hundred times as long with 128,000 tokens: every state is a rule of its own.)
"""

from __future__ import annotations

from structgen.errors import GrammarError
from structgen.grammar.analysis import Nullability, is_regular, resolve
from structgen.grammar.nodes import (
    ANY_CHAR,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
    literal,
)

__all__ = ["any_text"]


def any_text(
    until: Grammar | str | None = None, *, min: int = 0, max: int | None = None, with_stop: bool = False
) -> Grammar:
    r"""Any text, up to the first occurrence of a stop.

    Where the stop is a text and follows, it stands there first: ``any_text(until=s) + s`` has every text that ends
    with ``s`` and holds it nowhere else, each in one reading.  Where it is a grammar, the texts are those in which it
    does not occur; a part of it at their end may then make an occurrence with what follows, so write ``with_stop``.

    Args:
        until: the stop, a text or a regular grammar without the empty text; ``None``: any text at all.
        min: how many characters there are at least, without the stop.
        max: how many there are at most; ``None``: any number.
        with_stop: the stop follows, as part of the text.

    Raises:
        TypeError: the stop is neither text nor a grammar.
        ValueError: the bounds contain no number, the stop is empty or may be, or there is none that could follow.
        GrammarError: the stop is not regular.

    >>> print(any_text(until="</b>"))
    ~(.* "</b>" .*)
    >>> print(any_text(until="\n", max=80, with_stop=True))
    .{0,80} "\n" & ~(.* "\n" .+)
    """
    if min < 0 or (max is not None and max < min):
        raise ValueError(f"any_text: the bounds {min}..{max} contain no number of characters; give 0 <= min <= max")
    if until is None:
        if with_stop:
            raise ValueError("any_text: there is no stop that could follow; say until=")
        return Repeat(ANY_CHAR, min, max)
    stop = _checked(until)
    anything = Repeat(ANY_CHAR, 0, None)
    if with_stop:
        ends_with = Sequence((Repeat(ANY_CHAR, min, max), stop))
        return Intersection((ends_with, Complement(Sequence((anything, stop, Repeat(ANY_CHAR, 1, None))))))
    holding = [Sequence((anything, stop, anything))]
    if isinstance(stop, Literal):
        holding += [Sequence((anything, Literal(start))) for start in _overlaps(stop.data)]
    without = Complement(holding[0] if len(holding) == 1 else Choice(holding))
    return without if min == 0 and max is None else Intersection((Repeat(ANY_CHAR, min, max), without))


def _checked(until: Grammar | str) -> Grammar:
    if not isinstance(until, (str, Grammar)):
        raise TypeError(f"any_text: expected a text or a grammar as the stop, found {type(until).__name__}")
    stop = literal(until) if isinstance(until, str) else until
    if not is_regular(stop):
        raise GrammarError(
            "any_text", "the stop is not regular", evidence=f"the term is {stop!r}", remedy="stop at a text or a regex"
        )
    flat = resolve(stop, through_shared=True)
    if Nullability(dict(flat.rules))(flat.body):
        raise ValueError("any_text: the stop may be empty, so that every text stops at once; give one that is not")
    return stop


def _overlaps(stop: bytes) -> list[bytes]:
    """What a text may not end with, for the stop behind it would begin within the text: the stop less a border."""
    return [stop[: len(stop) - size] for size in range(1, len(stop)) if stop[:size] == stop[len(stop) - size :]]
