"""Terms made by the operators of a grammar: literals, sequences, choices and repetitions, simplified a little."""

from __future__ import annotations

from structgen.grammar.nodes.base import Grammar, builtin_max
from structgen.grammar.nodes.recursive import Budget, Capture
from structgen.grammar.nodes.regular import EPSILON, Choice, Complement, Intersection, Literal, Repeat, Sequence

__all__ = ["choice", "literal", "repeat", "sequence"]


def coerced(value: Grammar | str | bytes) -> Grammar:
    return value if isinstance(value, Grammar) else literal(value)


def literal(text: str | bytes) -> Grammar:
    """The language of exactly ``text`` (``str`` is written in UTF-8; lone surrogates are refused)."""
    if isinstance(text, str):
        try:
            return Literal(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(
                f"literal: lone surrogate {text[error.start]!r} at character {error.start} has no UTF-8 form; "
                "pass bytes if you mean raw bytes"
            ) from None
    return Literal(text)


def sequence(*items: Grammar | str | bytes) -> Grammar:
    """The items one after the other, with nested sequences spliced and adjacent literals joined."""
    flat: list[Grammar] = []
    for item in items:
        term = coerced(item)
        for part in term.items if isinstance(term, Sequence) else (term,):
            if isinstance(part, Literal):
                if not part.data:
                    continue
                if flat and isinstance(flat[-1], Literal):
                    flat[-1] = Literal(flat[-1].data + part.data)
                    continue
            flat.append(part)
    if not flat:
        return EPSILON
    return flat[0] if len(flat) == 1 else Sequence(flat)


def choice(*items: Grammar | str | bytes) -> Grammar:
    """Any one of the items, with nested choices spliced."""
    flat: list[Grammar] = []
    for item in items:
        term = coerced(item)
        flat.extend(term.items if isinstance(term, Choice) else (term,))
    return flat[0] if len(flat) == 1 else Choice(flat)


def repeat(item: Grammar | str | bytes, min: int = 0, max: int | None = None) -> Grammar:
    """``item`` from ``min`` to ``max`` times (``None``: unbounded)."""
    return Repeat(coerced(item), min, max)


def intersection(*items: Grammar | str | bytes) -> Grammar:
    """Strings that belong to every item."""
    return Intersection(tuple(coerced(item) for item in items))


def complement(item: Grammar) -> Grammar:
    """The texts that do not belong to ``item``."""
    return Complement(item)


def capture(item: Grammar, name: str) -> Grammar:
    """``item``, reported under ``name``."""
    return Capture(name, item)


def budget(item: Grammar, tokens: int | None, characters: int | None) -> Grammar:
    """``item`` within bounds."""
    return Budget(item, tokens, characters)


def many(item: Grammar, min: int, max: int | None, sep: Grammar | str | bytes | None) -> Grammar:
    """``item`` from ``min`` to ``max`` times, with ``sep`` between."""
    if sep is None:
        return repeat(item, min, max)
    if max is not None and (max < min or max < 0):
        raise ValueError(f"many: the bounds {min}..{max} contain no count; give 0 <= min <= max")
    if max == 0:
        return EPSILON
    further = repeat(sequence(coerced(sep), item), builtin_max(min - 1, 0), None if max is None else max - 1)
    joined = sequence(item, further)
    return joined if min > 0 else choice(EPSILON, joined)
