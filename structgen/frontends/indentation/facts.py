"""Facts about the parts of a marked grammar, as a least fixpoint over its rules.

Also: regular terms without the strings that start with certain characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Final, NamedTuple

from structgen.errors import GrammarError
from structgen.frontends.indentation.marks import GAP, NEWLINE, Block, Enclosed, NotBefore
from structgen.frontends.regex.code_point import complement, python_word
from structgen.frontends.regex.context_table import TermAnalysis
from structgen.frontends.regex.syntax import Side, alphabet_of
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either
from structgen.grammar.analysis import Nullability, strongly_connected
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.nodes.description import Described

__all__ = [
    "BLANK",
    "GUARDED",
    "LINE",
    "MIDDLE",
    "SPACED",
    "Facts",
    "facts_of",
    "guard_of",
    "guards_of",
    "is_spaced",
    "nonempty",
    "states_after",
    "without_start",
    "word_characters",
]

_SOME: Final = ir.Repeat(ir.ANY_CHAR, 1, None)
_nullable: Final = Nullability({})


@cache
def word_characters() -> ir.CharClass:
    r"""The characters of ``\w``."""
    return ir.CharClass(python_word())


def nonempty(term: Grammar) -> Grammar:
    """Return a regular term without the empty string; the same object if it has none."""
    if not Nullability({})(term):
        return term
    if isinstance(term, ir.Repeat) and not Nullability({})(term.item):
        return ir.EMPTY if term.max == 0 else ir.Repeat(term.item, 1, term.max)
    return ir.Intersection((term, _SOME))


def without_start(term: Grammar, characters: ir.CharClass) -> Grammar:
    """Return the strings of a regular term that begin with a character outside ``characters``.

    The same object if all do.
    """
    alphabet = alphabet_of((characters.ranges,))
    others = alphabet.mask(Side(at_edge=False, characters=complement(characters.ranges)))
    found = TermAnalysis(alphabet).first_in(term, others)
    return ir.EMPTY if found is None else found


def any_number(item: Grammar) -> Grammar:
    if isinstance(item, ir.Repeat) and item.min <= 1 and item.max is None:
        item = item.item  # (x+)* is x*
    return ir.Repeat(item, 0, None)


def begins_freely(gap: Grammar, guard: ir.CharClass) -> bool:
    some = ir.EPSILON if gap is ir.EPSILON else nonempty(gap)
    return some is ir.EPSILON or without_start(some, guard) is some


def optional_text(text: Grammar) -> Grammar:
    return ir.EPSILON if text is ir.EMPTY else either([text, ir.EPSILON])


MIDDLE: Final = 0
"""Inside a line; any character may come next."""
LINE: Final = 1
"""At the start of a line, before its indentation."""
BLANK: Final = 2
"""At the start of a line, before the last character of its indentation."""
SPACED: Final = 3
"""Inside a line; ignored text may come next."""
GUARDED: Final = 4
"""The first guarded state, in which some characters may not come next.

Guarded states come in pairs: without and with ignored text before the next character.
"""

TEXT: Final = 1
"""Begins with text."""
MARK: Final = 2
"""Begins with a mark whose meaning depends on the state."""
FORBIDDEN: Final = 4
"""Begins with a character that the first guarded state forbids; the bits above are for the other guarded states."""


class Facts(NamedTuple):
    """The facts about a node.

    Attributes:
        after: for each state before it, the possible states after it, as bits.
        is_empty: whether it may be empty, without text and marks.
        first: what it may begin with.
        has_gaps: whether it depends on being inside brackets.
        has_lines: whether it depends on the width of the block around it, except at the start of a line.
    """

    after: tuple[int, ...]
    is_empty: bool = False
    first: int = 0
    has_gaps: bool = False
    has_lines: bool = False

    @property
    def begins_line(self) -> bool:
        """Whether it begins with text in every state."""
        return not self.is_empty and not self.first & MARK

    def depends_on_guard(self, state: int) -> bool:
        """Whether the guard of the state before it matters."""
        return self.is_empty or bool(self.first & (MARK | FORBIDDEN << guard_of(state)))


def guard_of(state: int) -> int:
    """The index of the guard of a guarded state."""
    return state - GUARDED >> 1


def is_spaced(state: int) -> bool:
    """Whether ignored text may come next."""
    return state == SPACED or (state >= GUARDED and (state - GUARDED) & 1 == 1)


def guards_of(terms: Iterable[Grammar]) -> tuple[ir.CharClass, ...]:
    """Return the guards of terms (sets of characters that may not come next), each once."""
    found: dict[ir.CharClass, None] = {}
    for term in terms:
        for node in postorder(term):
            if isinstance(node, NotBefore):
                found[node.characters] = None
    return tuple(found)


def facts_of(
    rules: Mapping[str, Grammar],
    body: Grammar,
    guards: tuple[ir.CharClass, ...],
    *,
    has_gaps: bool,
    newline: Grammar | None,
) -> dict[int, Facts]:
    """Return the facts of all nodes with a reference or mark, and of the regular terms between them, by ``id``.

    Args:
        rules: with ``Block`` and ``Enclosed`` nodes in place of their marks.
        body: the same.
        guards: those of all terms; each has a state.
        has_gaps: whether there is ignored text, at least line ends between brackets.
        newline: the end of a line; ``None``: lines have no meaning.

    Raises:
        GrammarError: a mark is in a term that must be regular, or in a permutation.
    """
    return _FactSolver(rules, guards, newline, has_gaps=has_gaps).solve(body)


class _FactSolver:
    def __init__(
        self, rules: Mapping[str, Grammar], guards: tuple[ir.CharClass, ...], newline: Grammar | None, *, has_gaps: bool
    ) -> None:
        self.rules = rules
        self.guards = guards
        self.states = range(GUARDED + 2 * len(guards))
        self.has_gaps = has_gaps
        self.nothing = Facts((0,) * len(self.states))
        self.identity = Facts(tuple(1 << state for state in self.states), is_empty=True)
        self.found: dict[int, Facts] = {}
        self.of_rules: dict[str, Facts] = dict.fromkeys(rules, self.nothing)
        self.nullable = Nullability({})
        lines, first = (0,) * len(self.states), TEXT
        if newline is not None:
            ends = self.text(newline)
            first, lines = ends.first, tuple(1 << LINE if states else 0 for states in ends.after)
        gap = self.identity.after
        if has_gaps:
            spaced = {MIDDLE: SPACED} | {state: state + 1 for state in self.states[GUARDED::2]}
            gap = tuple(1 << spaced.get(state, state) for state in self.states)
        self.marks = {
            NEWLINE.name: Facts(lines, first=first, has_gaps=True),
            GAP.name: Facts(gap, first=MARK),
        }

    def solve(self, body: Grammar) -> dict[int, Facts]:
        orders = {name: self.order(term) for name, term in self.rules.items()}
        uses = {name: [node.name for node in order if isinstance(node, ir.Reference)] for name, order in orders.items()}
        for component in strongly_connected(uses):
            changed = True
            while changed:
                changed = False
                for name in component:
                    for node in orders[name]:
                        self.found[id(node)] = self.combine(node)
                    facts = self.found[id(self.rules[name])]
                    changed = changed or facts != self.of_rules[name]
                    self.of_rules[name] = facts
        for node in self.order(body):
            self.found[id(node)] = self.combine(node)
        return self.found

    def order(self, term: Grammar) -> list[Grammar]:
        """The nodes of a term with a reference or mark, children first; regular terms are measured as a whole."""
        nodes = list(postorder(term))
        named: set[int] = set()
        for node in nodes:
            if isinstance(node, (ir.Reference, NotBefore, Block, Enclosed)) or any(
                id(child) in named for child in node.children
            ):
                named.add(id(node))
        selected: list[Grammar] = []
        texts: dict[int, Grammar] = {}
        for node in nodes:
            if id(node) in named:
                for child in node.children:
                    if id(child) not in named and id(child) not in texts:
                        texts[id(child)] = child
                        selected.append(child)
                selected.append(node)
        if not selected:
            selected.append(term)
        for node in selected:
            if id(node) not in named:
                self.found[id(node)] = self.text(node)
        return [node for node in selected if id(node) in named]

    def text(self, node: Grammar) -> Facts:
        known = self.found.get(id(node))
        if known is not None:
            return known
        is_empty = self.nullable(node)
        some = nonempty(node)
        first, after = TEXT, [1 << MIDDLE] * GUARDED
        if some is ir.EMPTY:
            first, after = 0, [0] * GUARDED
        for index, guard in enumerate(self.guards):
            allowed = without_start(some, guard)
            first |= FORBIDDEN << index if allowed is not some else 0
            may = 1 << MIDDLE if allowed is not ir.EMPTY else 0
            after += [may, after[MIDDLE] if self.has_gaps else may]
        if is_empty:
            after = [states | 1 << state for state, states in enumerate(after)]
        return Facts(tuple(after), is_empty, first)

    def combine(self, node: Grammar) -> Facts:
        parts = [self.found[id(child)] for child in node.children]
        match node:
            case ir.Reference(name=name):
                return self.marks.get(name) or self.of_rules[name]
            case NotBefore():
                guarded = 1 << GUARDED + 2 * self.guards.index(node.characters)
                return Facts(tuple(1 << LINE if state == LINE else guarded for state in self.states), first=MARK)
            case Block():
                after = tuple(parts[0].after[LINE] & 1 << LINE if state == LINE else 0 for state in self.states)
                return Facts(after, first=MARK, has_gaps=parts[0].has_gaps, has_lines=True)
            case Enclosed():
                return parts[0]._replace(has_gaps=False, has_lines=False)
            case ir.Sequence():
                return reduce(_then, parts, self.identity)
            case ir.Choice():
                return reduce(_or, parts, self.nothing)
            case ir.Repeat():
                return self.repeated(parts[0], node.min, node.max)
            case ir.Capture() | Described():
                return parts[0]
            case _:
                raise GrammarError(
                    "grammar",
                    f"{type(node).__name__} holds rules in a grammar with lines or word boundaries",
                    remedy="write it with sequences, choices and repetitions there",
                )

    def repeated(self, item: Facts, low: int, high: int | None) -> Facts:
        if high == 0:
            return self.identity
        total = item if low else _or(item, self.identity)
        for _ in self.states if high is None else range(min(high - 1, len(self.states))):
            total = _or(total, _then(total, item))  # as many rounds reach every reachable state
        return total


def states_after(after: tuple[int, ...], states: int) -> int:
    """Return the union of ``after`` over a set of states, as bits."""
    return reduce(or_, (targets for state, targets in enumerate(after) if states >> state & 1), 0)


@lru_cache(maxsize=1 << 14)
def _then(one: Facts, other: Facts) -> Facts:
    inside_line = reduce(or_, (targets for state, targets in enumerate(one.after) if state != LINE), 0)
    anywhere = inside_line | one.after[LINE]
    meets_gap = any(anywhere >> state & 1 for state in range(SPACED, len(one.after)) if is_spaced(state))
    return Facts(
        tuple(states_after(other.after, states) for states in one.after),
        one.is_empty and other.is_empty,
        one.first | other.first if one.is_empty else one.first,
        one.has_gaps or other.has_gaps or ((not one.is_empty or bool(one.first)) and bool(other.first) and meets_gap),
        one.has_lines or other.has_lines or bool(inside_line >> LINE & 1 and other.first),
    )


@lru_cache(maxsize=1 << 14)
def _or(one: Facts, other: Facts) -> Facts:
    return Facts(
        tuple(map(or_, one.after, other.after)),
        one.is_empty or other.is_empty,
        one.first | other.first,
        one.has_gaps or other.has_gaps,
        one.has_lines or other.has_lines,
    )
