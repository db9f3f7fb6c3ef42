"""Regexps with lazy repetitions, taken apart at them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from structgen.grammar.lark.shortest import Branches, Lazy, Pattern, Refusal, branches
from structgen.grammar.nodes import Grammar

__all__ = ["split_at_lazy"]

# What matters for finding quantifiers: escapes, classes, groups, bars.
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
_MOST_LAZY: Final = 1_000
_PLAIN_GROUP: Final = re.compile(r"\((?:\?(?:P<\w+>|:))?")

_Part: TypeAlias = tuple[int, int] | Grammar | Lazy | Branches
"""A span of the text without lazy repetition, or a part that is read."""


class _Group:
    """An open group: its finished alternatives, and the one that is being read."""

    __slots__ = ("alternatives", "atom", "has_lazy", "opening", "parts", "start", "text_from")

    def __init__(self, start: int, opening: str, text_from: int) -> None:
        self.start = start
        self.opening = opening
        self.text_from = text_from
        self.atom: int | None = None  # where the last character, class or plain group begins
        self.parts: list[_Part] = []
        self.alternatives: list[list[_Part]] = []
        self.has_lazy = False


def split_at_lazy(
    text: str, *, verbose: bool, plain: Callable[[int, int], Grammar], refuse: Callable[[int, str], Exception]
) -> Pattern:
    """Take a regexp apart at its lazy repetitions; only the groups that hold one are opened.

    Args:
        text: the regexp.
        verbose: whether white space and comments are free.
        plain: reads a span of the text; reports what is malformed.
        refuse: makes the error for a lazy repetition at an offset, from the reason.

    Complexity:
        O(n), without recursion.
    """
    reader = _Reader(text, plain, refuse)
    position = 0
    while position < len(text):
        free = _FREE.match(text, position) if verbose else None
        piece = None if free else _PIECE.match(text, position)
        position = free.end() if free else reader.read(piece) if piece else len(text)
    return reader.finish()


class _Reader:
    def __init__(
        self, text: str, plain: Callable[[int, int], Grammar], refuse: Callable[[int, str], Exception]
    ) -> None:
        self.text = text
        self.plain = plain
        self.refuse = refuse
        self.groups = [_Group(0, "", 0)]
        self.opened_group_end = -1
        self.lazy_count = 0

    def read(self, piece: re.Match[str]) -> int:
        group = self.groups[-1]
        start, end = piece.span()
        match piece.lastgroup:
            case "open":
                self.groups.append(_Group(start, piece[0], end))
            case "close" if len(self.groups) > 1:
                self.close(start, end)
            case "comment":
                pass
            case "unclosed":
                self.plain(0, len(self.text))  # reports it
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
            self.plain(0, len(self.text))  # reports the group that is not closed
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
            raise self.refuse(inner.start, "it stands in a group with flags or a look-around")
        self.end_text(inner, start, end)
        self.end_text(outer, inner.start, end)
        outer.parts += self.pattern_parts(inner)
        outer.has_lazy = True
        self.opened_group_end = end

    def count(self, group: _Group, piece: re.Match[str]) -> int:
        start, end = piece.span()
        is_lazy = self.text.startswith("?", end)
        if start == self.opened_group_end:
            raise self.refuse(start, "it stands in a group that is repeated")
        if is_lazy and group.atom is not None:
            atom = group.atom
            self.end_text(group, atom, end + 1)
            self.plain(atom, end)  # reports counts that are malformed
            low, high = _COUNTS.get(piece[0]) or _bounds(piece[0])
            self.lazy_count += 1
            if self.lazy_count > _MOST_LAZY:
                raise self.refuse(start, f"there are more than {_MOST_LAZY} of them in one regexp")
            group.parts.append(Lazy(self.plain(atom, start), low, high, self.refusal(start)))
            group.has_lazy = True
        group.atom = None
        return end + is_lazy

    def end_text(self, group: _Group, end: int, go_on: int) -> None:
        """End the text that is being read at ``end``; what comes next begins at ``go_on``."""
        if end > group.text_from:
            group.parts.append((group.text_from, end))
        group.text_from = go_on
        group.atom = None

    def pattern_parts(self, group: _Group) -> list[_Part]:
        if not group.alternatives:
            return group.parts
        return list(self.pattern(group))

    def pattern(self, group: _Group) -> Pattern:
        alternatives = [
            tuple(self.plain(*part) if isinstance(part, tuple) else part for part in parts)
            for parts in [*group.alternatives, group.parts]
        ]
        return alternatives[0] if len(alternatives) == 1 else branches(alternatives)

    def refusal(self, position: int) -> Refusal:
        return lambda reason: self.refuse(position, reason)


def _bounds(count: str) -> tuple[int, int | None]:
    low, comma, high = count[1:-1].partition(",")
    least = int(low or "0")
    return least, (int(high) if high else None) if comma else least
