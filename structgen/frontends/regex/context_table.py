"""The language of a contextual node as a table: (left requirement, right requirement) -> term.

What a node with assertions matches depends on its context. It has a few languages, each valid under a requirement on
the left context and one on the right context.  ``^a|b$`` is ``{(start, any): "a", (any, end): "b"}``.  Tables compose:
the left requirement of the second node is met by the last character of the first, or passed to the left if the first is
empty. Requirements are passed on, never tried case by case, so no part is split by its possible contexts: composition
costs a constant number of terms for each pair of cells.

Restriction of a term to a given first or last character (``first_in``, ``last_in``) rewrites the term, without an
automaton. The last character is in the last *non-empty* item, so a sequence ``x1 .. xn`` restricts to
``x1 .. (xi restricted)`` for each ``i`` with nullable items after it, and a loop to one restricted round after any
number of others. Complexity: the new terms share their parts; as trees they are at most quadratic in the term.

Short sequences are spliced into longer ones; long ones stay one item, else a pattern of n assertions would cost n
squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence as Items
from operator import is_
from typing import Final, TypeVar

from structgen.errors import LimitExceeded
from structgen.frontends.regex.code_point import Ranges, contains, intersection
from structgen.frontends.regex.syntax import ANY, CHARACTERS, EDGE, LAST_NEWLINE, Cell, ContextAlphabet
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import Nullability
from structgen.grammar.limits import spend
from structgen.grammar.nodes import Grammar
from structgen.grammar.visitor import Call, trampoline

__all__ = [
    "ANYWHERE",
    "ANY_TEXT",
    "EMPTY_TABLE",
    "Composer",
    "Table",
    "TermAnalysis",
    "both",
    "either",
    "gathered",
    "grouped",
    "table_union",
    "then",
]

ANY_TEXT: Final[Grammar] = ir.Repeat(ir.ANY_CHAR, 0, None)
"""Every string."""

_Key = TypeVar("_Key")
_SPLICED_ITEMS: Final = 8
_JOINED_BYTES: Final = 64
_JOINED_ITEMS: Final = 16


def then(first: Grammar, second: Grammar) -> Grammar:
    """``first`` and then ``second``; short sequences are spliced and short literals joined."""
    if second is ir.EPSILON:
        return first
    if first is ir.EPSILON:
        return second
    left, right = _spliced(first), _spliced(second)
    end, start = left[-1], right[0]
    if isinstance(end, ir.Literal) and isinstance(start, ir.Literal) and len(start.data) <= _JOINED_BYTES:
        joined = ir.Literal(end.data + start.data)
        if len(left) + len(right) == 2:
            return joined
        return ir.Sequence((*left[:-1], joined, *right[1:]))
    return ir.Sequence(left + right)


def either(terms: Items[Grammar]) -> Grammar:
    """Any one of ``terms``, without duplicates."""
    distinct = list({id(term): term for term in terms}.values())
    return distinct[0] if len(distinct) == 1 else ir.Choice(distinct)


def gathered(cells: Iterable[tuple[_Key, Grammar]]) -> dict[_Key, Grammar]:
    """For each key, any one of its terms."""
    found: dict[_Key, list[Grammar]] = {}
    for key, term in cells:
        found.setdefault(key, []).append(term)
    return {key: either(terms) for key, terms in found.items()}


def grouped(bits: Iterable[int], requirements: Items[int]) -> list[int]:
    """``bits``, joined where they meet the same requirements."""
    groups: dict[tuple[bool, ...], int] = {}
    for bit in bits:
        signature = tuple(bool(left & bit) for left in requirements)
        groups[signature] = groups.get(signature, 0) | bit
    return list(groups.values())


def both(left: Grammar, right: Grammar) -> Grammar:
    """The intersection of two terms, with short nested intersections spliced."""
    if left is ANY_TEXT:
        return right
    if right is ANY_TEXT:
        return left
    items: list[Grammar] = []
    for term in (left, right):
        short = isinstance(term, ir.Intersection) and len(term.items) <= _JOINED_ITEMS
        items.extend(term.children if short else (term,))
    return ir.Intersection(items)


def _spliced(term: Grammar) -> tuple[Grammar, ...]:
    if isinstance(term, ir.Sequence) and 0 < len(term.items) <= _SPLICED_ITEMS:
        return term.items
    return (term,)


_NEWLINE: Final = b"\n"


class TermPredicate:
    """A cached predicate on terms whose value follows from the values of the sub-terms.

    ``rule(term, known)`` computes it for one term; ``known`` returns the values of its children.
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


class TermAnalysis:
    """Cached facts about terms.

    Attributes:
        alphabet: of the masks of ``first_in`` and ``last_in``.
        nullable: whether a term matches the empty string.
        holds_newline: whether a term matches one line feed.
        has_capture: whether a term contains a capture.
    """

    def __init__(self, alphabet: ContextAlphabet) -> None:
        self.alphabet = alphabet
        self.nullable = Nullability({})
        self.holds_newline = TermPredicate(self._is_newline)
        self.has_capture = TermPredicate(_has_capture)
        self._restricted: dict[tuple[int, int, bool], tuple[Grammar, Grammar | None]] = {}

    def first_in(self, term: Grammar, mask: int) -> Grammar | None:
        """The non-empty strings of ``term`` that begin with a character of ``mask``; ``None`` if there are none."""
        return trampoline(self._restriction(term, mask, from_left=True))

    def last_in(self, term: Grammar, mask: int) -> Grammar | None:
        """The non-empty strings of ``term`` that end with a character of ``mask``; ``None`` if there are none."""
        return trampoline(self._restriction(term, mask, from_left=False))

    def _is_newline(self, term: Grammar, known: Callable[[Grammar], bool]) -> bool:
        match term:
            case ir.Literal(data=data):
                return data == _NEWLINE
            case ir.CharClass(ranges=ranges):
                return contains(ranges, 0x0A)
            case ir.Sequence(items=items):
                filled = [item for item in items if not self.nullable(item)]
                if filled:
                    return len(filled) == 1 and known(filled[0])
                return any(map(known, items))
            case ir.Choice(items=items):
                return any(map(known, items))
            case ir.Intersection(items=items):
                return all(map(known, items))
            case ir.Repeat(item=item, min=minimum, max=maximum):
                return maximum != 0 and (minimum <= 1 or self.nullable(item)) and known(item)
            case ir.Capture(item=item):
                return known(item)
            case ir.Complement(item=item):
                return not known(item)
        return False

    def _restriction(self, term: Grammar, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        key = (id(term), mask, from_left)
        known = self._restricted.get(key)
        if known is None:
            spend(_RESTRICTION_STEPS, "regex", _MULTIPLIED)
            known = term, (yield self._compute(term, mask, from_left=from_left))
            self._restricted[key] = known
        return known[1]

    def _compute(self, term: Grammar, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        match term:
            case ir.Literal(data=data):
                return self._of_literal(term, data, self.alphabet.ranges(mask), from_left=from_left)
            case ir.CharClass(ranges=members):
                common = intersection(members, self.alphabet.ranges(mask))
                if common == members:
                    return term if members else None
                return ir.CharClass(common) if common else None
            case ir.Sequence(items=items):
                part: Grammar | None = yield self._of_sequence(term, items, mask, from_left=from_left)
                return part
            case ir.Choice(items=items):
                found = []
                for item in items:
                    part = yield self._restriction(item, mask, from_left=from_left)
                    if part is not None:
                        found.append(part)
                if len(found) == len(items) and all(map(is_, found, items)):
                    return term
                return either(found) if found else None
            case ir.Repeat():
                part = yield self._of_repeat(term, mask, from_left=from_left)
                return part
            case ir.Capture(name=name, item=item):
                part = yield self._restriction(item, mask, from_left=from_left)
                return None if part is None else term if part is item else ir.Capture(name, part)
            case ir.Intersection(items=items) if items:
                part = yield self._restriction(items[0], mask, from_left=from_left)
                return None if part is None else term if part is items[0] else ir.Intersection((part, *items[1:]))
        edge = self.alphabet.characters(mask)
        shape = ir.Sequence((edge, ANY_TEXT)) if from_left else ir.Sequence((ANY_TEXT, edge))
        return ir.Intersection((term, shape))

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
        # Only leading nullable items, and the item after them, can hold the outer character.
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
            found = here if found is None else found if here is None else ir.Choice((here, found))
            rest = _ordered(item, rest, from_left=from_left)
        return found

    def _of_repeat(self, term: ir.Repeat, mask: int, *, from_left: bool) -> Call[Grammar | None]:
        part = yield self._restriction(term.item, mask, from_left=from_left)
        if part is None or term.max == 0:
            return None
        if part is term.item and term.min > 0:
            return term
        # Empty rounds can be moved inward, so that the outermost round is not empty.
        maximum = None if term.max is None else term.max - 1
        others = ir.EPSILON if maximum == 0 else ir.Repeat(term.item, max(term.min - 1, 0), maximum)
        return _ordered(part, others, from_left=from_left)


def _has_capture(term: Grammar, known: Callable[[Grammar], bool]) -> bool:
    return isinstance(term, ir.Capture) or any(map(known, term.children))


def _ordered(outer: Grammar, inner: Grammar, *, from_left: bool) -> Grammar:
    return then(outer, inner) if from_left else then(inner, outer)


def _joined(items: tuple[Grammar, ...], *, from_left: bool) -> Grammar:
    if not items:
        return ir.EPSILON
    if len(items) == 1:
        return items[0]
    return ir.Sequence(items if from_left else items[::-1])


Table = dict[Cell, Grammar]

ANYWHERE: Cell = (ANY, ANY)
EMPTY_TABLE: Table = {ANYWHERE: ir.EPSILON}
"""The empty string, without any requirement."""

# A step of translation makes a few nodes, and visits more.
_NODES_A_STEP: Final = 16
_RESTRICTION_STEPS: Final = 15
_COMPOSITION_STEPS: Final = 10
_MULTIPLIED: Final = "its assertions multiply"
_NEWLINE_TEXT: Final = ir.Literal(b"\n")


class Composer:
    """Composition of tables over one alphabet, for one pattern.

    Attributes:
        alphabet: the blocks of characters.
        terms: cached facts about the terms of the pattern.
        written_rounds: the number of loop rounds written out.
    """

    __slots__ = ("_left", "_max_nodes", "alphabet", "terms", "written_rounds")

    def __init__(self, alphabet: ContextAlphabet, max_nodes: int) -> None:
        self.alphabet = alphabet
        self.terms = TermAnalysis(alphabet)
        self.written_rounds = 0
        self._max_nodes = max_nodes
        self._left = max_nodes // _NODES_A_STEP

    def spend(self, steps: int) -> None:
        """Count steps of translation.

        Raises:
            LimitExceeded: there are too many for the limit on nodes.
        """
        self._left -= steps
        if self._left < 0:
            raise LimitExceeded("regex", limit="grammar_nodes", maximum=self._max_nodes, evidence=_MULTIPLIED)
        spend(_COMPOSITION_STEPS * steps, "regex", _MULTIPLIED)

    def composed(self, first: Table, second: Table) -> Table:
        """``first`` and then ``second``."""
        cells: list[tuple[Cell, Grammar]] = []
        for (left, following), prefix in first.items():
            for (preceding, right), suffix in second.items():
                for outer_left, before in self.before(prefix, left, preceding):
                    self.spend(1)
                    cells.extend(
                        ((outer_left, outer_right), then(before, after))
                        for outer_right, after in self.after(suffix, right, following)
                    )
        return table_union(cells)

    def before(self, term: Grammar, left: int, preceding: int) -> Iterator[tuple[int, Grammar]]:
        """The strings of ``term`` that end as ``preceding`` requires, each with its requirement on the left."""
        if preceding == ANY:
            yield left, term
            return
        self.spend(1)
        if preceding & CHARACTERS:
            part = self.terms.last_in(term, preceding & CHARACTERS)
            if part is not None:
                yield left, part
        if left & preceding and self.terms.nullable(term):
            yield left & preceding, ir.EPSILON

    def after(self, term: Grammar, right: int, following: int) -> Iterator[tuple[int, Grammar]]:
        """The strings of ``term`` that begin as ``following`` requires, each with its requirement on the right."""
        for part, residual in self.keeping(term, following):
            if right & residual:
                yield right & residual, part
        if following != ANY and following & right and self.terms.nullable(term):
            yield following & right, ir.EPSILON

    def keeping(self, term: Grammar, following: int) -> Iterator[tuple[Grammar, int]]:
        """The strings of ``term`` that begin as ``following`` requires.

        Each comes with what is still required of the text after it.
        The empty string is among them only without a requirement.
        """
        if following == ANY:
            yield term, ANY
            return
        self.spend(1)
        if following & CHARACTERS:
            part = self.terms.first_in(term, following & CHARACTERS)
            if part is not None:
                yield part, ANY
        if following & LAST_NEWLINE and not following & self.alphabet.line_feed and self.terms.holds_newline(term):
            yield _NEWLINE_TEXT, EDGE


def table_union(cells: Iterable[tuple[Cell, Grammar]]) -> Table:
    """The table of all ``cells``, without cells that another one covers."""
    table = gathered(cells)
    if table.get(ANYWHERE) is ir.EPSILON:
        return {cell: term for cell, term in table.items() if cell == ANYWHERE or term is not ir.EPSILON}
    return table
