"""The length of the longest string in a language: a number, unbounded, or between two bounds.

Lengths are bytes, as in the distances of the engine: a special token counts as one.  Intersections and complements are
bounded by their parts only, so the result may be a range; its bounds always hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.analysis import productive_rules, strongly_connected
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import resolve

__all__ = ["NOTHING", "UNBOUNDED", "UNKNOWN", "Longest", "is_text", "longest"]

UNBOUNDED: Final = math.inf
NO_LENGTH: Final = -math.inf
ESCAPE_BYTES: Final = 6  # \uXXXX for one UTF-16 unit
_LAST_ASCII: Final = 0x7F

Range: TypeAlias = tuple[float, float]
"""Bounds of the length of the longest string; minus infinity where there may be no string."""
UNKNOWN: Final[Range] = (NO_LENGTH, UNBOUNDED)
NOTHING: Final[Range] = (NO_LENGTH, NO_LENGTH)


def exact_range(length: float) -> Range:
    """The range of a known length."""
    return length, length


def longest_of(ranges: Iterable[Range]) -> Range:
    """The longest of several; ``NOTHING`` for none."""
    found = list(ranges)
    return max((low for low, _ in found), default=NO_LENGTH), max((high for _, high in found), default=NO_LENGTH)


def total_length(ranges: Iterable[Range]) -> Range:
    """The length of a sequence; ``NOTHING`` if one of its items matches no string."""
    low = high = 0.0
    for one, other in ranges:
        low = NO_LENGTH if NO_LENGTH in (low, one) else low + one
        high = NO_LENGTH if NO_LENGTH in (high, other) else high + other
    return low, high


def times_length(length: float, count: int | None) -> float:
    """``count`` times a length; ``None``: any number of times."""
    if count is None:
        return UNBOUNDED if length > 0 else length
    return length * count


def permuted_range(
    required: list[float], optional: list[float], rest: float, separator: float, spare: int | None, min_count: int
) -> float:
    """The length of all required items with the ``spare`` longest other items, and at least ``min_count`` in all."""
    if NO_LENGTH in required:
        return NO_LENGTH
    chosen = sorted((length for length in optional if length != NO_LENGTH), reverse=True)
    if spare is None and rest != NO_LENGTH and rest + separator > 0:
        return UNBOUNDED
    if rest != NO_LENGTH:
        chosen = [length for length in chosen if length >= rest]
        short = min_count - len(required) - len(chosen) if spare is None else spare - len(chosen)
        chosen += [rest] * max(0, short)
    chosen = chosen[:spare]
    count = len(required) + len(chosen)
    if count < min_count:
        return NO_LENGTH
    return sum(required) + sum(chosen) + (separator * (count - 1) if count > 1 else 0)


def is_text(root: Grammar) -> bool:
    """Whether every string is certainly well-formed UTF-8; complements contain only such strings."""
    for node in ir.postorder(root):
        if isinstance(node, ir.ByteClass) and node.ranges and node.ranges[-1][1] > _LAST_ASCII:
            return False
        if isinstance(node, ir.Literal) and not _is_utf8(node.data):
            return False
    return True


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def spelled_range(data: bytes) -> int:
    """The length of ``data`` inside a JSON string with every UTF-16 unit escaped."""
    return ESCAPE_BYTES * len(data.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")) // 2


@dataclass(frozen=True, slots=True)
class Longest:
    """The length of the longest string.

    Attributes:
        at_least: a lower bound; None: the length is unbounded.
        at_most: an upper bound; None: none is known.
    """

    at_least: int | None
    at_most: int | None

    @property
    def is_unbounded(self) -> bool:
        """Whether there are strings of any length."""
        return self.at_least is None

    @property
    def is_finite(self) -> bool:
        """Whether there is a longest string; if neither this nor ``is_unbounded`` holds, it is unknown."""
        return self.at_most is not None

    @property
    def is_exact(self) -> bool:
        """Whether the length is known."""
        return self.at_least == self.at_most

    def to_json(self) -> dict[str, str | int | None]:
        """Return the bounds as JSON values, with a word: ``finite``, ``unbounded`` or ``unknown``."""
        status = "unbounded" if self.is_unbounded else "finite" if self.is_finite else "unknown"
        return {"status": status, "at_least": self.at_least, "at_most": self.at_most}

    def __str__(self) -> str:
        if self.is_unbounded:
            return "unbounded"
        if self.at_most is None:
            return "not known to be bounded"
        return f"{self.at_most:,}" if self.is_exact else f"at most {self.at_most:,}"


def longest(grammar: Grammar) -> Longest:
    """Return the length of the longest string of a closed, non-empty term; a special token counts as one byte.

    Raises:
        GrammarError: a reference has no rule.
        LimitExceeded: the grammar has no small form with one flat set of rules.

    >>> from structgen.frontends.regex import regex
    >>> print(longest(regex("[0-9]{1,3}(,[0-9]{3}){0,4}")), longest(regex("a*b")), sep="; ")
    19; unbounded
    """
    flat = resolve(grammar, through_shared=True)
    lengths = _Lengths(dict(flat.rules))
    low, high = lengths.of(flat.body)
    return Longest(None if low == UNBOUNDED else max(0, int(low)) if low != NO_LENGTH else 0, _whole(high))


def _whole(bound: float) -> int | None:
    return None if math.isinf(bound) else int(bound)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The measured lengths of a node.

    Attributes:
        base: the length without references to the rules being solved.
        around: the length of the text around such a reference; None if there is none.
    """

    base: Range
    around: Range | None = None

    @property
    def full(self) -> Range:
        """The length before the rules are solved."""
        return self.base if self.around is None else (self.base[0], UNBOUNDED)


class _Lengths:
    """The ranges of the nodes of a resolved grammar."""

    def __init__(self, rules: Mapping[str, Grammar]) -> None:
        self._rules = rules
        self._productive = productive_rules(rules)
        self._solved: dict[str, Range] = {}
        self._known: dict[tuple[int, bool], _Measured] = {}
        for component in strongly_connected(_names(rules)):
            self._solve(component)

    def of(self, root: Grammar) -> Range:
        """Return the range of a node whose rules are solved."""
        return self._measured(root, {}).base

    def _solve(self, component: list[str]) -> None:
        """Solve rules that refer to each other.

        If a cycle of references adds text, the length is unbounded. Otherwise the length of each rule is the longest of
        their lengths without the cycles.
        """
        inside: dict[tuple[int, bool], _Measured] = {}
        measured = [self._measured(self._rules[name], inside) for name in component if name in self._productive]
        base = longest_of(one.base for one in measured)
        cycles = [one.around for one in measured if one.around is not None]
        if cycles and base != NOTHING:
            around = longest_of(cycles)
            low = UNBOUNDED if around[0] > 0 and base[0] != NO_LENGTH else base[0]
            base = low, UNBOUNDED if around[1] > 0 else base[1]
        for name in component:
            self._solved[name] = base if name in self._productive else NOTHING

    def _measured(self, root: Grammar, inside: dict[tuple[int, bool], _Measured]) -> _Measured:
        """Measure a node; ``inside`` caches what depends on rules being solved.

        Keys are a node and whether it is inside a JSON string, where its longest spelling counts.
        """
        stack = [(root, False)]
        while stack:
            node, decoded = stack[-1]
            below = [(child, decoded or isinstance(node, ir.JsonString)) for child in node.children]
            waiting = [item for item in below if self._find(item, inside) is None]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            parts = [found for item in below if (found := self._find(item, inside)) is not None]
            result = self._combined(node, parts, decoded=decoded)
            (self._known if result.around is None else inside)[id(node), decoded] = result
        found = self._find((root, False), inside)
        return _Measured(UNKNOWN) if found is None else found

    def _find(self, item: tuple[Grammar, bool], inside: dict[tuple[int, bool], _Measured]) -> _Measured | None:
        key = id(item[0]), item[1]
        return self._known.get(key) or inside.get(key)

    def _combined(self, node: Grammar, parts: list[_Measured], *, decoded: bool) -> _Measured:
        match node:
            case ir.Literal() | ir.ByteClass() | ir.CharClass() | ir.SpecialToken():
                return _Measured(_symbol(node, decoded=decoded))
            case ir.Reference():
                solved = self._solved.get(node.name)
                return _Measured(NOTHING, (0, 0)) if solved is None else _Measured(solved)
            case ir.Sequence():
                return _Measured(total_length(part.base for part in parts), _around_in_sequence(parts))
            case ir.Choice():
                cycles = [part.around for part in parts if part.around is not None]
                return _Measured(longest_of(part.base for part in parts), longest_of(cycles) if cycles else None)
            case ir.Repeat():
                return _repeated(node, parts[0])
            case ir.Permutation():
                return _permuted(node, parts)
            case ir.JsonString() if parts[0].around is None:
                return _Measured(total_length((parts[0].base, (2, 2))))
            case ir.Intersection() if all(part.around is None for part in parts):
                return _Measured(_met(node, [part.base for part in parts], self._known, decoded=decoded))
            case ir.Complement() if parts[0].base[1] < UNBOUNDED and parts[0].around is None:
                return _Measured(exact_range(UNBOUNDED))
            case ir.Budget():
                return _bounded(node, parts[0])
            case ir.Distinct():
                return _without_repetition(node, parts[0])
            case ir.Label() if parts[0].around is None:
                return _Measured((NO_LENGTH, parts[0].base[1]))
            case ir.Capture() | ir.Tempered() | ir.Shared() | Described():
                return parts[0]
        return _Measured(UNKNOWN)


def _symbol(node: ir.Literal | ir.ByteClass | ir.CharClass | ir.SpecialToken, *, decoded: bool) -> Range:
    match node:
        case ir.Literal():
            return exact_range(spelled_range(node.data) if decoded else len(node.data))
        case ir.ByteClass():
            return exact_range(ESCAPE_BYTES if decoded else 1) if node.ranges else NOTHING
        case ir.CharClass():
            return exact_range(_widest(node, decoded=decoded)) if node.ranges else NOTHING
    return exact_range(len(str(node.token).encode())) if node.or_text else exact_range(1)


def _around_in_sequence(parts: list[_Measured]) -> Range | None:
    found = []
    for index, part in enumerate(parts):
        if part.around is not None:
            beside = (_beside(other) for other in parts[:index] + parts[index + 1 :])
            found.append(total_length((part.around, *beside)))
    retained = [one for one in found if one[1] != NO_LENGTH]
    return longest_of(retained) if retained else None


def _beside(part: _Measured) -> Range:
    """The length that a part adds to a reference beside it; a part with such a reference itself may add nothing."""
    return part.base if part.around is None else (max(0.0, part.base[0]), UNBOUNDED)


def _repeated(node: ir.Repeat, part: _Measured) -> _Measured:
    if node.max == 0:
        return _Measured(exact_range(0))
    low, high = (times_length(bound, node.max) for bound in part.base)
    base = (max(low, 0.0), max(high, 0.0)) if node.min == 0 else (low, high)
    if part.around is None or node.max == 1:
        return _Measured(base, part.around)
    return _Measured(base, (part.around[0] + max(0.0, part.base[0]), UNBOUNDED))


def _permuted(node: ir.Permutation, parts: list[_Measured]) -> _Measured:
    *members, rest, separator = parts
    if separator.around is not None or separator.base[0] == NO_LENGTH:
        return _Measured(UNKNOWN, None if all(part.around is None for part in parts) else UNKNOWN)
    split = len(node.required)
    spare = None if node.max is None else node.max - split
    bounds = []
    for side in (0, 1):
        once = [part.base[side] for part in members]
        bounds.append(
            permuted_range(once[:split], once[split:], rest.base[side], separator.base[side], spare, node.min)
        )
    usable = parts[:split] if spare == 0 else parts
    cycles = [
        total_length((part.around, *(_beside(other) for other in members[:split] if other is not part)))
        for part in usable
        if part.around is not None
    ]
    around = (longest_of(cycles)[0], UNBOUNDED) if cycles else None
    return _Measured((bounds[0], bounds[1]), around)


def _without_repetition(node: ir.Distinct, part: _Measured) -> _Measured:
    """At most the length of the item; where closing is always possible, at least an empty container."""
    low = 2.0 if node.is_spare and part.base[0] >= 2 else NO_LENGTH
    return _Measured((low, part.base[1]), None if part.around is None else (0, UNBOUNDED))


def _bounded(node: ir.Budget, part: _Measured) -> _Measured:
    """At most four bytes a character; a token budget bounds nothing, since a token may have any length."""
    upper = part.base[1] if node.characters is None else min(part.base[1], 4.0 * node.characters)
    low = part.base[0] if node.characters is None else NO_LENGTH
    return _Measured((low if node.tokens is None else NO_LENGTH, upper), part.around)


def _met(
    node: ir.Intersection, ranges: list[Range], known: Mapping[tuple[int, bool], _Measured], *, decoded: bool
) -> Range:
    """At most the shortest item; a string longer than everything the complements remove remains."""
    retained, taken = [], 0.0
    for item, (low, high) in zip(node.items, ranges, strict=True):
        if isinstance(item, ir.Complement):
            taken = max(taken, known[id(item.item), decoded].full[1])
        else:
            retained.append((low, high))
    upper = min((high for _, high in ranges), default=UNBOUNDED)
    if len(retained) == 1 and retained[0][0] > taken and all(map(is_text, node.items)):
        return retained[0]
    return NO_LENGTH, upper


def _widest(node: ir.CharClass, *, decoded: bool) -> int:
    widest = chr(node.ranges[-1][1])
    return spelled_range(widest.encode()) if decoded else len(widest.encode())


def _names(rules: Mapping[str, Grammar]) -> dict[str, tuple[str, ...]]:
    """The rules that each rule refers to; nodes that they share are visited once."""
    made: dict[int, tuple[str, ...]] = {}
    for body in rules.values():
        for node in ir.postorder(body, known=lambda node: id(node) in made):
            own = (node.name,) if isinstance(node, ir.Reference) else ()
            below = [names for child in node.children if (names := made[id(child)])]
            made[id(node)] = own if not below else below[0] if len(below) == 1 else _merged(below)
    return {name: made[id(body)] for name, body in rules.items()}


def _merged(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))
