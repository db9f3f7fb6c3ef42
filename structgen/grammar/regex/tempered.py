"""Loops such as ``(?:(?!end).)*``, where each turn looks ahead and then takes one character.

In general a look-ahead inside a loop makes an alternating automaton.  One shape is simpler, and common: the turns
take one character each and what follows the loop has a known length ``d``.  Then the turns are at exactly the
positions with more than ``d`` characters left, so a text is refused when some rest of it, longer than ``d``, does
(not) belong to what was looked for: ``C* K & ~(anything (A & longer than d))``.  What follows may have a few
lengths; each is a case of its own.  And where it is just what the loop must not see, as in ``(?:(?!end).)*end``
before any text, the look-ahead forbids nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Literal,
    Repeat,
    Sequence,
    postorder,
)
from structgen.grammar.regex.joining import ANY_TEXT, both, either, then
from structgen.grammar.regex.syntax import Boundary, Concatenation, Lookahead, Loop, Node

__all__ = ["TemperedShape", "tempered_language", "tempered_shape"]

ByLength = dict[int, Grammar]
"""Length in characters -> the texts of a term that have it."""

_MAX_LENGTHS: Final = 32


@dataclass(frozen=True, slots=True)
class TemperedShape:
    """What one turn of such a loop does: the look-aheads, then the character."""

    looks: tuple[Lookahead | Boundary, ...]
    character: Grammar


def tempered_shape(loop: Loop) -> TemperedShape | None:
    """The shape of ``loop``, or ``None`` if it has another."""
    items: tuple[Node, ...] = loop.item.items if isinstance(loop.item, Concatenation) else (loop.item,)
    *looks, character = items
    if not isinstance(character, Grammar) or set(_by_length(character) or ()) != {1}:
        return None
    found = tuple(look for look in looks if isinstance(look, Lookahead | Boundary))
    return TemperedShape(found, character) if len(found) == len(looks) else None


def _by_length(root: Grammar) -> ByLength | None:
    """``root`` split by the length of its texts in characters; ``None`` if they have many lengths or unclear ones."""
    known: dict[int, ByLength | None] = {}
    for term in postorder(root):
        parts = [known[id(child)] for child in term.children]
        split = _split(term, [part for part in parts if part is not None]) if None not in parts else None
        known[id(term)] = None if split is None or len(split) > _MAX_LENGTHS else split
    return known[id(root)]


def tempered_language(character: Grammar, seen: list[tuple[Grammar, bool]], tail: Grammar) -> Grammar | None:
    """The texts of the loop followed by ``tail``, or ``None`` if they are not of a known kind.

    Args:
        character: what a turn takes.
        seen: what each look-ahead wants to see up to the end of the text, and whether it is negative.
        tail: what follows the loop, up to the end of the text.
    """
    if seen == [(tail, True)]:
        # The loop runs up to what must not be seen before it ends: the first such place will do for any.
        return then(Repeat(character, 0, None), tail)
    follows = _by_length(tail)
    if follows is None:
        return None
    languages: list[Grammar] = []
    for length, text in follows.items():
        longer = Repeat(ANY_CHAR, length + 1, None)
        language = then(Repeat(character, 0, None), text)
        for ahead, negative in seen:
            bad = both(longer, ahead if negative else Complement(ahead))
            language = both(language, Complement(then(ANY_TEXT, bad)))
        languages.append(language)
    return either(languages)


def _split(term: Grammar, parts: list[ByLength]) -> ByLength | None:
    match term:
        case Literal(data=data):
            return {len(data.decode()): term}
        case CharClass():
            return {1: term}
        case Sequence():
            return _product(parts)
        case Choice():
            return _gathered([pair for part in parts for pair in part.items()])
        case Capture(name=name):
            return {length: Capture(name, text) for length, text in parts[0].items()}
        case Repeat(item=item, min=minimum, max=int(maximum)) if len(parts[0]) == 1:
            if maximum - minimum < _MAX_LENGTHS:
                [length] = parts[0]
                counts = range(minimum, maximum + 1)
                return _gathered([(count * length, Repeat(item, count, count)) for count in counts])
    return None


def _product(parts: list[ByLength]) -> ByLength | None:
    done: ByLength = {0: EPSILON}
    for part in parts:
        pairs = [(one + other, then(left, right)) for one, left in done.items() for other, right in part.items()]
        done = _gathered(pairs)
        if len(done) > _MAX_LENGTHS:
            return None
    return done


def _gathered(pairs: list[tuple[int, Grammar]]) -> ByLength:
    gathered: dict[int, list[Grammar]] = {}
    for length, term in pairs:
        gathered.setdefault(length, []).append(term)
    return {length: either(terms) for length, terms in gathered.items()}
