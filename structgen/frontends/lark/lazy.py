"""Lazy repetition in terminals: ``/".*?"/`` stops at the first position where the rest of the terminal can match.

As a set of strings, ``x*?`` is ``x*``; as part of a terminal it is not, because Lark takes the match that backtracking
finds first.  That match is written as a language::

    x{m,n}? s r   is   ((x{m,n} s) & ~(x{m,} s any+)) r

for a single character ``x``, a part ``s`` of fixed length and an ``r`` that may be empty: the first factor ends at the
first ``s``.  If all that follows may be empty, the repetition stops after m.  Anything else is refused.  Regexps are
split at their lazy repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from structgen.frontends.indentation.marks import NotBefore
from structgen.frontends.regex.repetition import by_length
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, joined, with_children
from structgen.grammar.analysis import Nullability
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.visitor import fold

__all__ = [
    "Branches",
    "Lazy",
    "LazyRefusal",
    "Pattern",
    "branches",
    "closed",
    "first_lazy",
    "is_plain",
    "plain",
    "split_at_lazy",
    "without_guards",
]


@dataclass(frozen=True, slots=True, eq=False)
class Lazy:
    """``item`` from ``min`` to ``max`` times, as few as possible."""

    item: Grammar
    min: int
    max: int | None
    refuse: LazyRefusal


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """Alternatives; at least one contains a lazy repetition."""

    alternatives: tuple[Pattern, ...]
    depth: int


LazyRefusal: TypeAlias = Callable[[str], Exception]
"""Makes the error that refuses a lazy repetition, from the reason."""
Pattern: TypeAlias = tuple[Grammar | Lazy | Branches, ...]
"""A concatenation."""

_MAX_GROUP_DEPTH: Final = 32


def is_plain(pattern: Pattern) -> bool:
    """Return whether the pattern has no lazy repetition."""
    return all(isinstance(part, Grammar) for part in pattern)


def branches(alternatives: list[Pattern]) -> Pattern:
    """Return the pattern of a choice."""
    if all(map(is_plain, alternatives)):
        return (either(map(plain, alternatives)),)
    inner = [part.depth for alternative in alternatives for part in alternative if isinstance(part, Branches)]
    return (Branches(tuple(alternatives), 1 + max(inner, default=0)),)


def plain(pattern: Pattern) -> Grammar:
    """Return the term of a pattern without lazy repetition."""
    return joined(part for part in pattern if isinstance(part, Grammar))


def closed(pattern: Pattern) -> Grammar:
    """Return the term of a whole terminal.

    Raises:
        UnsupportedFeature: no small finite automaton can tell where a lazy repetition stops.
    """
    return _closed(pattern, Nullability({}))


def _closed(pattern: Pattern, nullable: Nullability) -> Grammar:
    if is_plain(pattern):
        return plain(pattern)
    after: list[Grammar] = []  # the terms after the present part, last first
    may_end = True  # whether all of them may be empty
    is_guarded = False  # whether one of them looks at the text after it
    for part in reversed(pattern):
        if is_guarded and not isinstance(part, Grammar):
            raise first_lazy((part,)).refuse("a part after it looks at the text that follows")
        if isinstance(part, Grammar):
            items = part.items if isinstance(part, ir.Sequence) else (part,)
            after += reversed(items)
        elif isinstance(part, Branches):
            refuse = first_lazy((part,)).refuse
            if part.depth > _MAX_GROUP_DEPTH:
                raise refuse("it is nested too deeply in groups")
            if not may_end:
                raise refuse("text follows its group")
            items = (either(_closed(branch, nullable) for branch in part.alternatives),)
            after += items
        elif may_end:
            items = (ir.Repeat(part.item, part.min, part.min),)
            after += items
        else:
            items = (_stopped(part, after, nullable),)
            after += items
        bare = [without_guards(item) for item in items]
        is_guarded = is_guarded or any(one is not item for one, item in zip(bare, items, strict=True))
        may_end = may_end and all(map(nullable, bare))
    return joined(reversed(after))


def without_guards(term: Grammar) -> Grammar:
    """Return ``term`` with the empty text for each guard; ``term`` itself if it has none."""
    if not any(isinstance(node, NotBefore) for node in postorder(term)):
        return term
    return fold(term, lambda node, parts: ir.EPSILON if isinstance(node, NotBefore) else with_children(node, parts))


def _stopped(lazy: Lazy, after: list[Grammar], nullable: Nullability) -> Grammar:
    """Return the repetition with what stops it, which is removed from ``after``."""
    if _length(lazy.item) != 1:
        raise lazy.refuse("it repeats more than a single character")
    ends = next(index for index, part in enumerate(after) if not nullable(part))
    stop = joined(reversed(after[ends:]))
    if not _length(stop):
        raise lazy.refuse("the part after it has no fixed length")
    del after[ends:]
    whole = joined([ir.Repeat(lazy.item, lazy.min, lazy.max), stop])
    later = joined([ir.Repeat(lazy.item, lazy.min, None), stop, ir.Repeat(ir.ANY_CHAR, 1, None)])
    return ir.Intersection((whole, ir.Complement(later)))


def first_lazy(pattern: Pattern) -> Lazy:
    """Return the first lazy repetition of a pattern that has one."""
    stack = list(reversed(pattern))
    while True:
        item = stack.pop()
        if isinstance(item, Lazy):
            return item
        if isinstance(item, Branches):
            stack.extend(inner for branch in reversed(item.alternatives) for inner in reversed(branch))


def _length(term: Grammar) -> int | None:
    """Return the number of characters of every string of ``term``, None if it varies or is not obvious."""
    lengths = by_length(term) or ()
    return next(iter(lengths)) if len(lengths) == 1 else None


# The pieces of a regexp that matter for finding quantifiers: escapes, classes, groups, bars.
_PIECE: Final = re.compile(
    r"""
      (?P<atom> \\. | \[\^?\]?(?:\\.|[^\]\\])*+\] )
    | (?P<comment> \(\?\#[^)]*+\) )
    | (?P<unclosed> \[ | \(\?\# )
    | (?P<open> \((?:\?(?:P<\w+>|[a-zA-Z-]*:|P=|<?[=!]))? )
    | (?P<close> \) )
    | (?P<bar> \| )
    | (?P<count> [*+?] | \{(?=[\d,])\d*(?:,\d*)?\} )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_FREE: Final = re.compile(r"(?:\s|#[^\n]*)++")
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_LAZY: Final = 1_000
_PLAIN_GROUP: Final = re.compile(r"\((?:\?(?:P<\w+>|:))?")

_Part: TypeAlias = tuple[int, int] | Grammar | Lazy | Branches
"""A span of the text without lazy repetition, or a part that has been read."""


@dataclass(slots=True)
class _OpenGroup:
    """An open group: its finished alternatives, and the current one."""

    start: int
    opening: str
    text_from: int
    atom: int | None = None  # where the last character, class or plain group begins
    parts: list[_Part] = field(default_factory=list)
    alternatives: list[list[_Part]] = field(default_factory=list)
    has_lazy: bool = False


def split_at_lazy(
    text: str, *, verbose: bool, plain: Callable[[int, int], Grammar], refuse: Callable[[int, str], Exception]
) -> Pattern:
    """Split a regexp at its lazy repetitions; only groups with a lazy repetition are opened.

    Args:
        text: the regexp.
        verbose: whether white space and comments are ignored.
        plain: reads a span of the text; raises if it is malformed.
        refuse: makes the error for a lazy repetition at an offset, from the reason.

    Complexity:
        O(n), without recursion.
    """
    reader = _LazyReader(text, plain, refuse)
    position = 0
    while position < len(text):
        free = _FREE.match(text, position) if verbose else None
        piece = None if free else _PIECE.match(text, position)
        position = free.end() if free else reader.read(piece) if piece else len(text)
    return reader.finish()


@dataclass(slots=True)
class _LazyReader:
    text: str
    plain: Callable[[int, int], Grammar]
    refuse: Callable[[int, str], Exception]
    groups: list[_OpenGroup] = field(default_factory=lambda: [_OpenGroup(0, "", 0)])
    opened_group_end: int = -1
    lazy_count: int = 0

    def read(self, piece: re.Match[str]) -> int:
        group = self.groups[-1]
        start, end = piece.span()
        match piece.lastgroup:
            case "open":
                self.groups.append(_OpenGroup(start, piece[0], end))
            case "close" if len(self.groups) > 1:
                self.close(start, end)
            case "comment":
                pass
            case "unclosed":
                self.plain(0, len(self.text))  # raises
            case "bar":
                self.end_text(group, start, end)
                group.alternatives.append(group.parts)
                group.parts = []
            case "count":
                return self.count(group, piece)
            case _:
                group.atom = start
        return end

    def finish(self) -> Pattern:
        if len(self.groups) > 1:
            self.plain(0, len(self.text))  # raises: a group is not closed
        group = self.groups[0]
        self.end_text(group, len(self.text), len(self.text))
        return self.pattern(group)

    def close(self, start: int, end: int) -> None:
        inner = self.groups.pop()
        outer = self.groups[-1]
        if not inner.has_lazy:
            outer.atom = inner.start
            return
        if not _PLAIN_GROUP.fullmatch(inner.opening):
            raise self.refuse(inner.start, "it is in a group with flags or a look-around")
        self.end_text(inner, start, end)
        self.end_text(outer, inner.start, end)
        outer.parts += self.pattern(inner) if inner.alternatives else inner.parts
        outer.has_lazy = True
        self.opened_group_end = end

    def count(self, group: _OpenGroup, piece: re.Match[str]) -> int:
        start, end = piece.span()
        is_lazy = self.text.startswith("?", end)
        if start == self.opened_group_end:
            raise self.refuse(start, "it is in a repeated group")
        if is_lazy and group.atom is not None:
            atom = group.atom
            self.end_text(group, atom, end + 1)
            self.plain(atom, end)  # raises if the counts are malformed
            low, high = _COUNTS.get(piece[0]) or _bounds(piece[0])
            self.lazy_count += 1
            if self.lazy_count > _MAX_LAZY:
                raise self.refuse(start, f"there are more than {_MAX_LAZY} of them in one regexp")
            group.parts.append(Lazy(self.plain(atom, start), low, high, self.refusal(start)))
            group.has_lazy = True
        group.atom = None
        return end + is_lazy

    def end_text(self, group: _OpenGroup, end: int, go_on: int) -> None:
        """End the current text at ``end``; the next part begins at ``go_on``."""
        if end > group.text_from:
            group.parts.append((group.text_from, end))
        group.text_from = go_on
        group.atom = None

    def pattern(self, group: _OpenGroup) -> Pattern:
        alternatives = [
            tuple(self.plain(*part) if isinstance(part, tuple) else part for part in parts)
            for parts in [*group.alternatives, group.parts]
        ]
        return alternatives[0] if len(alternatives) == 1 else branches(alternatives)

    def refusal(self, position: int) -> LazyRefusal:
        return lambda reason: self.refuse(position, reason)


def _bounds(count: str) -> tuple[int, int | None]:
    low, comma, high = count[1:-1].partition(",")
    minimum = int(low or "0")
    return minimum, (int(high) if high else None) if comma else minimum
