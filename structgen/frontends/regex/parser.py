"""The parser: one pass over the pattern with a stack of open groups.

A complete construct becomes an IR term at once; ``syntax`` has nodes for the few that cannot. A handler reads the
construct at an offset and returns the offset after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final

from structgen.errors import LimitExceeded
from structgen.frontends.regex.character_class import Lexicon, lexicon
from structgen.frontends.regex.dialect import Dialect, Flag, malformed, refused
from structgen.frontends.regex.escape import skip_space
from structgen.frontends.regex.group import GroupKind, GroupOpening, read_group
from structgen.frontends.regex.syntax import (
    Boundary,
    ContextAlphabet,
    Item,
    Lookahead,
    Node,
    Span,
    TooManyBlocks,
    alphabet_of,
    alternatives,
    as_boundary,
    concatenation,
    has_fixed_width,
    loop,
    named,
    to_node,
)
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import CharClass, Grammar

__all__ = ["parse"]

_COUNT: Final = re.compile(r"\{([0-9]*)(,([0-9]*))?\}")
_SPACED_COUNT: Final = re.compile(r"\{\s*([0-9]*)\s*(,\s*([0-9]*)\s*)?\}")
_MAX_COUNT: Final = 2**32 - 2


# The operand of a quantifier: nothing, the last character of the last item, the whole last item, a repeat (also the
# last item), or an anchor.
_NOTHING, _CHARACTER, _WHOLE, _REPEAT, _ANCHOR = range(5)

# The cost of a look-around, or of a loop around an assertion, in the limit on nodes: they take several times as long
# to read and to translate as other constructs.
_CONTEXTUAL_PARTS: Final = 8

# Characters are counted this many at a time, and the ranges of a class in addition.
_CHARACTERS: Final = 1024
_STEPS_A_CHARACTER: Final = 2
_RANGES_A_STEP: Final = 32

# The counts of the quantifiers of one character.
_QUANTIFIERS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Frame = tuple[GroupKind, str, int, list[Item], list[Item], Lexicon]
"""An open group (kind, name, offset), and the state around it (branches, items, lexicon)."""


def parse(text: str, dialect: Dialect, flags: Flag, limits: Limits) -> tuple[Node, ContextAlphabet]:
    """Parse ``text``; return its tree and the alphabet of its assertions.

    Raises:
        GrammarSyntaxError: ``text`` is not a pattern of the dialect.
        UnsupportedFeature: a construct is refused by name.
        LimitExceeded: the pattern is too long, too deep or has too many parts.

    Complexity: linear in the length of ``text``.
    """
    if len(text) > limits.source_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise LimitExceeded("regex", limit="source_bytes", maximum=limits.source_bytes)
    parser = _Parser(text, dialect, flags, limits)
    return parser.parse(), parser.alphabet()


class _Parser:
    __slots__ = ("assertions", "branches", "dialect", "frames", "has_surrogates", "is_verbatim", "items",
                 "last", "lexicon", "limits", "loops", "names", "parts", "text")  # fmt: skip

    handlers: ClassVar[dict[str, Callable[[_Parser, int], int]]]

    def __init__(self, text: str, dialect: Dialect, flags: Flag, limits: Limits) -> None:
        self.text = text
        self.dialect = dialect
        self.limits = limits
        self.has_surrogates = not text.isascii() and _SURROGATE.search(text) is not None
        self.frames: list[_Frame] = []
        self.branches: list[Item] = []
        self.items: list[Item] = []
        self.last = _NOTHING
        self.loops: dict[tuple[Item | int, int, int | None], Item] = {}
        self.names: set[str] = set()
        self.parts = 0
        self.assertions: dict[Boundary, None] = {}
        self.use(lexicon(dialect.name, flags))

    def use(self, chosen: Lexicon) -> None:
        """Switch to the lexicon ``chosen``."""
        self.lexicon = chosen
        self.is_verbatim = not chosen.is_caseless and not self.has_surrogates

    def parse(self) -> Node:
        text, size = self.text, len(self.text)
        handlers = self.handlers
        index = counted = 0
        while index < size:
            if index >= counted:
                spend(_STEPS_A_CHARACTER * min(_CHARACTERS, size - counted), f"regex at character {index}")
                counted += _CHARACTERS
            run = self.lexicon.ordinary.match(text, index)
            if run is None:
                index = handlers.get(text[index], _Parser.skipped)(self, index)
                continue
            index = run.end()
            if self.is_verbatim:
                self.items.append(run.group())
                self.last = _CHARACTER
            else:
                self.items.extend(map(self.lexicon.letters.__getitem__, run.group()))
                self.last = _WHOLE
        if self.frames:
            start = self.frames[-1][2]
            raise malformed(text, (start, start + 1), "unclosed group", "add ')' or write \\(")
        return to_node(self.finished())

    def finished(self) -> Item:
        """The complete body of the innermost open group."""
        self.end_branch()
        return alternatives(self.branches)

    def end_branch(self) -> None:
        self.count(1 + sum(not isinstance(item, str) for item in self.items))
        self.branches.append(concatenation(self.items))

    def count(self, parts: int) -> None:
        """Count parts against the limit."""
        self.parts += parts
        if self.parts > self.limits.grammar_nodes:
            raise LimitExceeded("regex", limit="grammar_nodes", maximum=self.limits.grammar_nodes)

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.last = _WHOLE

    def skipped(self, index: int) -> int:
        """The offset after white space and comments, under the flag ``x``."""
        return skip_space(self.text, index, self.dialect)

    def dot(self, index: int) -> int:
        self.add(self.lexicon.dot)
        return index + 1

    def bar(self, index: int) -> int:
        self.end_branch()
        self.items = []
        self.last = _NOTHING
        return index + 1

    def caret(self, index: int) -> int:
        return self.anchor(self.lexicon.caret, index + 1)

    def dollar(self, index: int) -> int:
        return self.anchor(self.lexicon.dollar, index + 1)

    def anchor(self, boundary: Boundary, end: int) -> int:
        # One of several equal anchors is enough, unless a quantifier may apply to the last one.
        repeatable = self.dialect.repeats_anchors
        if repeatable or not self.items or self.items[-1] is not boundary:
            self.assertions[boundary] = None
            self.items.append(boundary)
        self.last = _WHOLE if repeatable else _ANCHOR
        return end

    def bracket(self, index: int) -> int:
        depth = len(self.frames)
        item, end = self.lexicon.bracketed(self.text, index, max_nesting=self.limits.nesting, depth=depth)
        self.add(item)
        self.count_ranges(item, index)
        return end

    def count_ranges(self, item: Item, index: int) -> None:
        """Count the work on a class at an offset."""
        if isinstance(item, CharClass):
            spend(len(item.ranges) // _RANGES_A_STEP, f"regex at character {index}")

    def backslash(self, index: int) -> int:
        letter = self.text[index + 1 : index + 2]
        known = self.lexicon.short_escapes.get(letter)
        if known is not None:
            self.add(known)
            return index + 2
        boundary = self.lexicon.boundary(letter)
        if boundary is None:
            item, end = self.lexicon.escape(self.text, index)
            self.add(item)
            self.count_ranges(item, index)
            return end
        if self.dialect.has_set_operations and self.text.startswith("{", index + 2):
            raise refused(self.text, (index, index + 3), "word boundary \\b{...}", "use \\b", reason="is not supported")
        return self.anchor(boundary, index + 2)

    def opening(self, index: int) -> int:
        text = self.text
        if text.startswith("?:", index + 1):
            self.push(GroupKind.PLAIN, "", index)
            return index + 3
        if text[index + 1 : index + 2] not in self.lexicon.group_marks:
            self.push(GroupKind.PLAIN, "", index)
            return index + 1
        group = read_group(text, index, self.dialect, self.lexicon.flags)
        if group.kind is GroupKind.COMMENT:
            return group.end
        if group.kind is GroupKind.FLAGS:
            self.set_flags(group, index)
            return group.end
        if group.name in self.names:
            raise malformed(text, (index, group.end), f"two groups are named {group.name!r}", "rename one")
        if group.name:
            self.names.add(group.name)
        self.push(group.kind, group.name, index)
        if group.flags != self.lexicon.flags:
            self.use(lexicon(self.dialect.name, group.flags))
        return group.end

    def push(self, kind: GroupKind, name: str, index: int) -> None:
        if len(self.frames) >= self.limits.nesting:
            raise LimitExceeded(
                "regex", limit="nesting", maximum=self.limits.nesting, evidence=f"groups nest at character {index}"
            )
        self.frames.append((kind, name, index, self.branches, self.items, self.lexicon))
        self.branches, self.items = [], []
        self.last = _NOTHING

    def set_flags(self, group: GroupOpening, index: int) -> None:
        at_start = not (self.frames or self.branches or self.items)
        if self.dialect.open_flags == "start" and not at_start:
            raise malformed(
                self.text,
                (index, group.end),
                "flags for the whole pattern are allowed only at its start",
                "move them there, or write a group such as (?i:...)",
            )
        self.use(lexicon(self.dialect.name, group.flags))
        self.last = _NOTHING

    def closing(self, index: int) -> int:
        if not self.frames:
            raise malformed(
                self.text, (index, index + 1), "')' closes no group", "remove it or write \\) to mean the character"
            )
        item = self.finished()
        kind, name, start, self.branches, self.items, outer = self.frames.pop()
        if outer is not self.lexicon:
            self.use(outer)
        if kind is not GroupKind.PLAIN:
            span = (start, index + 1)
            item = named(name, item, span) if kind is GroupKind.NAMED else self.looked(kind, to_node(item), span)
        self.items.append(item)
        self.last = _WHOLE
        return index + 1

    def looked(self, kind: GroupKind, body: Node, span: Span) -> Item:
        """The term or node of a complete look-around."""
        self.count(_CONTEXTUAL_PARTS)
        ahead = kind in (GroupKind.AHEAD, GroupKind.NOT_AHEAD)
        negative = kind in (GroupKind.NOT_AHEAD, GroupKind.NOT_BEHIND)
        boundary = as_boundary(body, ahead=ahead, negative=negative)
        if boundary is not None and (ahead or not self.dialect.fixed_lookbehind or has_fixed_width(body)):
            self.assertions[boundary] = None
            return boundary
        if ahead:
            return Lookahead(body, negative, span)
        raise refused(
            self.text,
            span,
            kind.value,
            "look after for one character, or match the preceding text as part of the pattern",
            reason="at more than one character is not supported",
        )

    def alphabet(self) -> ContextAlphabet:
        """The alphabet of the assertions read so far."""
        sides = (side for boundary in self.assertions for cell in boundary.cells for side in cell)
        try:
            return alphabet_of(tuple(dict.fromkeys(side.characters for side in sides)))
        except TooManyBlocks:
            raise refused(
                self.text,
                (0, len(self.text)),
                "assertions about more than 64 kinds of characters",
                "use fewer different look-arounds",
                reason="are not supported",
            ) from None

    def quantifier(self, index: int) -> int:
        minimum, maximum = _QUANTIFIERS[self.text[index]]
        return self.repeat(index, index + 1, minimum, maximum)

    def brace(self, index: int) -> int:
        """``{m,n}``, or a literal brace."""
        found = (_SPACED_COUNT if self.dialect.spaces_in_counts else _COUNT).match(self.text, index)
        if found is not None:
            low, comma, high = found.groups()
            if low or (comma and self.dialect.omits_lower_count):
                minimum, maximum = self.counts(index, found.end(), low, high if comma else low)
                return self.repeat(index, found.end(), minimum, maximum)
            if high:
                raise malformed(
                    self.text,
                    found.span(),
                    f"a count without a minimum is not part of the {self.dialect.title} dialect",
                    f"write {{0,{high}}}",
                )
        if not self.dialect.lone_brace_is_literal:
            raise malformed(self.text, (index, index + 1), "'{' begins no count", "write \\{ to mean the character")
        self.items.append("{")
        self.last = _CHARACTER
        return index + 1

    def counts(self, start: int, end: int, low: str, high: str) -> tuple[int, int | None]:
        for digits in (low, high):
            if len(digits.lstrip("0")) > 10 or int(digits or "0") > _MAX_COUNT:
                raise malformed(self.text, (start, end), f"a count is above {_MAX_COUNT}")
        minimum, maximum = int(low or "0"), int(high) if high else None
        if maximum is not None and maximum < minimum:
            raise malformed(self.text, (start, end), "the minimum count is above the maximum", "swap them")
        return minimum, maximum

    def repeat(self, start: int, end: int, minimum: int, maximum: int | None) -> int:
        """Repeat the last operand; lazy and greedy quantifiers match the same whole strings."""
        span = (start, end)
        if self.last in (_NOTHING, _ANCHOR):
            problem = "there is nothing to repeat"
            raise malformed(self.text, span, problem, "escape the quantifier to mean the character")
        if self.last == _REPEAT and not self.dialect.repeats_repeats:
            raise malformed(self.text, span, "a quantifier follows a quantifier", "group what is repeated: (?:...)")
        if self.text.startswith("?", end):
            end += 1
        elif self.text.startswith("+", end) and not self.dialect.repeats_repeats:
            raise refused(
                self.text,
                (start, end + 1),
                "possessive quantifier",
                "leave out the '+'; it also matches where a possessive quantifier gives up early",
                reason="is not supported",
            )
        item = self.items.pop()
        if self.last == _CHARACTER and isinstance(item, str) and len(item) > 1:
            self.items.append(item[:-1])
            item = item[-1]
        self.items.append(self.loop(item, minimum, maximum, span))
        self.last = _REPEAT
        return end

    def loop(self, item: Item, minimum: int, maximum: int | None, span: Span) -> Item:
        """``item`` repeated; equal loops of one character or class are shared."""
        if isinstance(item, str):
            key: tuple[Item | int, int, int | None] = (item, minimum, maximum)
        elif isinstance(item, CharClass):
            key = (id(item), minimum, maximum)
        else:
            if not isinstance(item, Grammar):
                self.count(_CONTEXTUAL_PARTS)
            return loop(item, minimum, maximum, span)
        known = self.loops.get(key)
        if known is None:
            known = self.loops[key] = loop(item, minimum, maximum, span)
        return known


_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_Parser.handlers = {
    ".": _Parser.dot,
    "|": _Parser.bar,
    "^": _Parser.caret,
    "$": _Parser.dollar,
    "[": _Parser.bracket,
    "\\": _Parser.backslash,
    "(": _Parser.opening,
    ")": _Parser.closing,
    "*": _Parser.quantifier,
    "+": _Parser.quantifier,
    "?": _Parser.quantifier,
    "{": _Parser.brace,
}
