"""Questions about a regular term, and the parts of its language with a given first or last character.

``first_in`` and ``last_in`` rewrite a term; they make no automaton.  The idea for the last character: the last
*non-empty* piece of a word decides it, so a sequence ``x1 .. xn`` restricts to ``x1 .. (xi restricted)`` for each
``i`` after which everything may be empty, and a loop to one restricted turn after any number of others.

Complexity: the terms made share their parts; written out as a tree they are at most quadratic in the term.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from structgen.grammar.nodes import (
    EPSILON,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
)
from structgen.grammar.regex.context import Alphabet
from structgen.grammar.regex.joining import ANY_TEXT, either, then
from structgen.grammar.regex.ranges import Ranges, contains, intersection
from structgen.grammar.regex.trampoline import Call, run

__all__ = ["Terms"]

_NEWLINE: Final = b"\n"


class Fact:
    """A yes-or-no question about terms whose answer follows from the answers for the sub-terms.

    ``rule(term, known)`` answers it for one term, where ``known`` answers for its children.
    """

    __slots__ = ("_answers", "_rule")

    def __init__(self, rule: Callable[[Grammar, Callable[[Grammar], bool]], bool]) -> None:
        self._rule = rule
        self._answers: dict[int, tuple[Grammar, bool]] = {}

    def __call__(self, term: Grammar) -> bool:
        if not term.children:
            return self._rule(term, self)
        known = self._answers.get(id(term))
        if known is None:
            self._find(term)
            known = self._answers[id(term)]
        return known[1]

    def _find(self, root: Grammar) -> None:
        stack = [root]
        while stack:
            term = stack[-1]
            waiting = [child for child in term.children if child.children and id(child) not in self._answers]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            if id(term) not in self._answers:
                self._answers[id(term)] = term, self._rule(term, self)


class Terms:
    """Facts about terms, each found once: an answer is kept with its term for as long as this object lives.

    Attributes:
        alphabet: what the masks of ``first_in`` and ``last_in`` speak of.
    """

    __slots__ = ("_captures", "_newline", "_nullable", "_restricted", "alphabet")

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        self._nullable = Fact(_is_nullable)
        self._newline = Fact(self._is_newline)
        self._captures = Fact(_has_capture)
        self._restricted: dict[tuple[int, int, bool], tuple[Grammar, Grammar | None]] = {}

    def nullable(self, term: Grammar) -> bool:
        """Whether the empty text belongs to ``term``."""
        return self._nullable(term)

    def holds_newline(self, term: Grammar) -> bool:
        """Whether the text of one line feed belongs to ``term``."""
        return self._newline(term)

    def has_capture(self, term: Grammar) -> bool:
        """Whether a part of ``term`` is captured."""
        return self._captures(term)

    def first_in(self, term: Grammar, mask: int) -> Grammar | None:
        """The non-empty texts of ``term`` that begin with a character of ``mask``; ``None`` if there are none."""
        return run(self._restriction(term, mask, from_left=True))

    def last_in(self, term: Grammar, mask: int) -> Grammar | None:
        """The non-empty texts of ``term`` that end with a character of ``mask``; ``None`` if there are none."""
        return run(self._restriction(term, mask, from_left=False))

    def _is_newline(self, term: Grammar, known: Callable[[Grammar], bool]) -> bool:
        match term:
            case Literal(data=data):
                return data == _NEWLINE
            case CharClass(ranges=ranges):
                return contains(ranges, 0x0A)
            case Sequence(items=items):
                filled = [item for item in items if not self.nullable(item)]
                if filled:
                    return len(filled) == 1 and known(filled[0])
                return any(map(known, items))
            case Choice(items=items):
                return any(map(known, items))
            case Intersection(items=items):
                return all(map(known, items))
            case Repeat(item=item, min=minimum, max=maximum):
                return maximum != 0 and (minimum <= 1 or self.nullable(item)) and known(item)
            case Capture(item=item):
                return known(item)
            case Complement(item=item):
                return not known(item)
        return False

    def _restriction(self, term: Grammar, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        key = (id(term), mask, from_left)
        known = self._restricted.get(key)
        if known is None:
            known = term, (yield self._compute(term, mask, from_left=from_left))
            self._restricted[key] = known
        return known[1]

    def _compute(self, term: Grammar, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        match term:
            case Literal(data=data):
                return self._of_literal(term, data, self.alphabet.ranges(mask), from_left=from_left)
            case CharClass(ranges=members):
                common = intersection(members, self.alphabet.ranges(mask))
                if common == members:
                    return term if members else None
                return CharClass(common) if common else None
            case Sequence(items=items):
                part: Grammar | None = yield self._of_sequence(term, items, mask, from_left=from_left)
                return part
            case Choice(items=items):
                found = []
                for item in items:
                    part = yield self._restriction(item, mask, from_left=from_left)
                    if part is not None:
                        found.append(part)
                if len(found) == len(items) and all(map(_same, found, items)):
                    return term
                return either(found) if found else None
            case Repeat():
                part = yield self._of_repeat(term, mask, from_left=from_left)
                return part
            case Capture(name=name, item=item):
                part = yield self._restriction(item, mask, from_left=from_left)
                return None if part is None else term if part is item else Capture(name, part)
            case Intersection(items=items) if items:
                part = yield self._restriction(items[0], mask, from_left=from_left)
                return None if part is None else Intersection((part, *items[1:]))
        edge = self.alphabet.characters(mask)
        shape = Sequence((edge, ANY_TEXT)) if from_left else Sequence((ANY_TEXT, edge))
        return Intersection((term, shape))

    @staticmethod
    def _of_literal(term: Grammar, data: bytes, ranges: Ranges, *, from_left: bool) -> Grammar | None:
        if not data:
            return None
        text = data.decode()
        return term if contains(ranges, ord(text[0] if from_left else text[-1])) else None

    def _of_sequence(
        self, term: Grammar, items: tuple[Grammar, ...], mask: int, *, from_left: bool
    ) -> Call[Grammar | None]:
        if not from_left:
            items = items[::-1]
        # Only a leading run of nullable items, and the item after it, can decide the outer character.
        deciding = 0
        while deciding < len(items) and self.nullable(items[deciding]):
            deciding += 1
        if deciding == 0 and items:
            part = yield self._restriction(items[0], mask, from_left=from_left)
            if part is items[0]:
                return term
        deciding = min(deciding + 1, len(items))
        rest: Grammar = _joined(items[deciding:], from_left=from_left)
        found: Grammar | None = None
        for item in reversed(items[:deciding]):
            part = yield self._restriction(item, mask, from_left=from_left)
            here = None if part is None else _ordered(part, rest, from_left=from_left)
            found = here if found is None else found if here is None else Choice((here, found))
            rest = _ordered(item, rest, from_left=from_left)
        return found

    def _of_repeat(self, term: Repeat, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        part = yield self._restriction(term.item, mask, from_left=from_left)
        if part is None or term.max == 0:
            return None
        if part is term.item and term.min > 0:
            return term
        # Empty turns can be put on the inner side, so that the outermost turn is the one that decides.
        maximum = None if term.max is None else term.max - 1
        others = EPSILON if maximum == 0 else Repeat(term.item, max(term.min - 1, 0), maximum)
        return _ordered(part, others, from_left=from_left)


def _is_nullable(term: Grammar, known: Callable[[Grammar], bool]) -> bool:
    match term:
        case Literal(data=data):
            return not data
        case Sequence(items=items) | Intersection(items=items):
            return all(map(known, items))
        case Choice(items=items):
            return any(map(known, items))
        case Repeat(item=item, min=minimum):
            return minimum == 0 or known(item)
        case Capture(item=item):
            return known(item)
        case Complement(item=item):
            return not known(item)
    return False


def _has_capture(term: Grammar, known: Callable[[Grammar], bool]) -> bool:
    return isinstance(term, Capture) or any(map(known, term.children))


def _same(left: Grammar, right: Grammar) -> bool:
    return left is right


def _ordered(outer: Grammar, inner: Grammar, *, from_left: bool) -> Grammar:
    return then(outer, inner) if from_left else then(inner, outer)


def _joined(items: tuple[Grammar, ...], *, from_left: bool) -> Grammar:
    if not items:
        return EPSILON
    if len(items) == 1:
        return items[0]
    return Sequence(items if from_left else items[::-1])
