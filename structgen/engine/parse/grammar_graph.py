"""Grammar terms with every name resolved, as a graph that is unfolded on demand.

A :class:`GraphNode` is one term in one scope.  Sequences become pairs and counted repeats nodes of their own, so that a
parser needs one step per node and position.  Nothing here recurses on the depth of a term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence as Items
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from structgen.errors import GrammarError
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.visitor import NodeTable

__all__ = [
    "Both",
    "Captured",
    "Characters",
    "Either",
    "GraphNode",
    "JsonText",
    "Linker",
    "Members",
    "Not",
    "Pair",
    "Repeated",
    "Special",
    "Text",
    "TokenOf",
    "symbols_of",
]

_PermutationState: TypeAlias = "tuple[frozenset[int], int, bool]"

SPECIAL_BASE: Final = 0x100
"""Symbols from here on are special tokens (``SPECIAL_BASE + id``); those below are bytes."""


class GraphNode:
    """One term in one scope; compared by identity."""

    __slots__ = ()


@final
@dataclass(eq=False, repr=False, slots=True)
class Text(GraphNode):
    """Exactly these bytes, each written as one character of ``symbols``."""

    symbols: str


@final
@dataclass(eq=False, repr=False, slots=True)
class Special(GraphNode):
    """One special token out of ``symbols``."""

    symbols: frozenset[str]


@final
@dataclass(eq=False, repr=False, slots=True)
class TokenOf(GraphNode):
    """One token out of a set of ids: ranges of ids, or all ids outside of them."""

    ranges: tuple[tuple[int, int], ...]
    is_excluded: bool

    def holds(self, token: int) -> bool:
        """Whether the set contains a token."""
        return any(low <= token <= high for low, high in self.ranges) != self.is_excluded


@final
@dataclass(eq=False, repr=False, slots=True)
class Characters(GraphNode):
    """From ``min`` to ``max`` bytes (``utf8`` false) or UTF-8 characters out of ``ranges``."""

    ranges: tuple[tuple[int, int], ...]
    utf8: bool
    min: int
    max: int | None


@final
@dataclass(eq=False, repr=False, slots=True)
class Pair(GraphNode):
    """``head`` and then ``tail``."""

    head: GraphNode
    tail: GraphNode


@final
@dataclass(eq=False, repr=False, slots=True)
class Either(GraphNode):
    """Any one of ``items``, the first preferred; ``recursive`` marks a reference: only it closes cycles."""

    items: tuple[GraphNode, ...]
    recursive: bool = False


@final
@dataclass(eq=False, repr=False, slots=True)
class Repeated(GraphNode):
    """``item`` from ``min`` to ``max`` times, as often as possible preferred."""

    item: GraphNode
    min: int
    max: int | None
    _optional: Repeated | None = field(default=None, init=False)
    _rest: Repeated | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.min == 0:
            self._optional = self
            self._rest = self if self.max is None else None

    def optional(self) -> Repeated:
        """The same repeat without a lower bound: its meaning if the item can be empty."""
        if self._optional is None:
            self._optional = Repeated(self.item, 0, self.max)
        return self._optional

    def rest(self) -> Repeated:
        """The repeat that follows one item."""
        if self._rest is None:
            self._rest = Repeated(self.item, max(self.min - 1, 0), None if self.max is None else self.max - 1)
        return self._rest


@final
@dataclass(eq=False, repr=False, slots=True)
class Both(GraphNode):
    """Texts that match every one of ``items``; without items, every well-formed text."""

    items: tuple[GraphNode, ...]


@final
@dataclass(eq=False, repr=False, slots=True)
class Not(GraphNode):
    """Well-formed texts that do not match ``item``."""

    item: GraphNode


@final
@dataclass(eq=False, repr=False, slots=True)
class JsonText(GraphNode):
    """A JSON string literal whose decoded text matches ``value``."""

    value: GraphNode


@final
@dataclass(eq=False, repr=False, slots=True)
class Captured(GraphNode):
    """``item``, whose text is reported under ``name``."""

    name: str
    item: GraphNode


@final
class Members(GraphNode):
    """The rest of a permutation, by the items that were ``used``, the ``count`` of members, and what comes next.

    ``item`` is one step further, made on demand: sets of items that no text leads to are never made.
    """

    __slots__ = ("_item", "_linker", "count", "is_after", "scope", "term", "used")

    def __init__(
        self, linker: Linker, term: ir.Permutation, scope: _RuleScope | None, state: _PermutationState
    ) -> None:
        self._linker = linker
        self.term = term
        self.scope = scope
        self.used, self.count, self.is_after = state
        self._item: GraphNode | None = None

    @property
    def item(self) -> GraphNode:
        """A member or a separator with the rest after it, or the end if nothing more is required."""
        if self._item is None:
            self._item = Either((Either(self._ways()),), recursive=True)
        return self._item

    def parts(self) -> tuple[tuple[Grammar, ...], tuple[Grammar, ...]]:
        """The terms that are matched at most once, and those that may be matched more often."""
        term = self.term
        return (*term.required, *term.optional), (term.rest, term.separator)

    def _ways(self) -> tuple[GraphNode, ...]:
        term, used, count = self.term, self.used, self.count
        items, (rest, separator) = self.parts()
        is_complete = count >= term.min and used.issuperset(range(len(term.required)))
        end = (Text(""),) if is_complete and (self.is_after or not count) else ()
        if count == term.max:
            return end
        if self.is_after:
            return (self._way(separator, used, count, is_after=False), *end)
        more = count + 1 if term.max is not None else min(count + 1, max(term.min, 1))
        free = [
            self._way(item, used | {index}, more, is_after=True)
            for index, item in enumerate(items)
            if index not in used
        ]
        return (*free, self._way(rest, used, more, is_after=True), *end)

    def _way(self, head: Grammar, used: frozenset[int], count: int, *, is_after: bool) -> GraphNode:
        following = self._linker.members(self.term, self.scope, (used, count, is_after))
        return Pair(self._linker.later(head, self.scope), following)


@final
@dataclass(eq=False, repr=False, slots=True)
class _PendingNode(GraphNode):
    """A term; ``node`` is None until the term is unfolded."""

    term: Grammar
    scope: _RuleScope | None
    node: GraphNode | None = None


@final
@dataclass(eq=False, repr=False, slots=True)
class _RuleScope:
    """The rules that one :class:`Rules` binds, inside those of ``outer``."""

    rules: dict[str, Grammar]
    outer: _RuleScope | None


class Linker:
    """Unfolds the terms of one grammar, a closed term; equal (term object, scope) pairs are one node.

    ``special`` are the special tokens of the vocabulary, id to text.
    """

    def __init__(self, grammar: Grammar, special: Mapping[int, str]) -> None:
        self._special = special
        self._pending: dict[tuple[int, int], _PendingNode] = {}
        self._members: dict[tuple[int, int, _PermutationState], Members] = {}
        self.root: GraphNode = self.later(grammar, None)

    @property
    def nodes(self) -> int:
        """How many nodes of terms, and of rests of permutations, were made."""
        return len(self._pending) + len(self._members)

    def unfold(self, node: GraphNode) -> GraphNode:
        """The node of a term, made if it is pending; any other node is returned as it is."""
        if not isinstance(node, _PendingNode):
            return node
        if node.node is None:
            term, scope = node.term, node.scope
            while isinstance(term, (ir.Shared, Described, ir.Distinct, ir.Label, ir.Tempered, ir.Rules)):
                if isinstance(term, ir.Rules):
                    scope, term = _RuleScope(dict(term.rules), scope), term.body
                else:  # what is shared is closed, so it is one node in all scopes
                    scope, term = None if isinstance(term, ir.Shared) else scope, term.item
            node.node = self._made(term, scope)
        return node.node

    def children(self, node: GraphNode) -> tuple[GraphNode, ...]:
        """The unfolded nodes that an unfolded ``node`` consists of."""
        match node:
            case Pair(head=head, tail=tail):
                inner: tuple[GraphNode, ...] = (head, tail)
            case Either(items=items) | Both(items=items):
                inner = items
            case Members():
                inner = tuple(self.later(part, node.scope) for parts in node.parts() for part in parts)
            case Repeated(item=item) | Not(item=item) | Captured(item=item) | JsonText(value=item):
                inner = (item,)
            case _:
                inner = ()
        return tuple(self.unfold(child) for child in inner)

    def later(self, term: Grammar, scope: _RuleScope | None) -> GraphNode:
        """The node of a term, to be unfolded on demand."""
        key = id(term), id(scope)
        node = self._pending.get(key)
        if node is None:
            node = self._pending[key] = _PendingNode(term, scope)
        return node

    def members(self, term: ir.Permutation, scope: _RuleScope | None, state: _PermutationState) -> Members:
        """The node of the rest of a permutation."""
        key = id(term), id(scope), state
        node = self._members.get(key)
        if node is None:
            node = self._members[key] = Members(self, term, scope, state)
        return node

    def _made(self, term: Grammar, scope: _RuleScope | None) -> GraphNode:
        if type(term) not in _MAKERS:
            raise GrammarError("captures", f"a term of type {type(term).__name__} has no meaning here")
        return _MAKERS[type(term)](self, term, scope)

    def _sequence(self, term: ir.Sequence, scope: _RuleScope | None) -> GraphNode:
        if not term.items:
            return Text("")
        node: GraphNode = self.later(term.items[-1], scope)
        for item in reversed(term.items[:-1]):
            node = Pair(self.later(item, scope), node)
        return self.unfold(node)

    def _several(self, items: Iterable[Grammar], scope: _RuleScope | None) -> tuple[GraphNode, ...]:
        return tuple(self.later(item, scope) for item in items)

    def _repeat(self, term: ir.Repeat, scope: _RuleScope | None) -> GraphNode:
        item = term.item
        if isinstance(item, (ir.ByteClass, ir.CharClass)):
            return Characters(item.ranges, utf8=isinstance(item, ir.CharClass), min=term.min, max=term.max)
        return Repeated(self.later(item, scope), term.min, term.max)

    def _reference(self, term: ir.Reference, scope: _RuleScope | None) -> GraphNode:
        bound = scope
        while bound is not None and term.name not in bound.rules:
            bound = bound.outer
        if bound is None:
            raise GrammarError(f"rule {term.name!r}", "no enclosing Rules binds this name")
        return Either((self.later(bound.rules[term.name], bound),), recursive=True)

    def _budget(self, term: ir.Budget, scope: _RuleScope | None) -> GraphNode:
        """Characters are counted; tokens are not, since the text alone does not determine them."""
        item = self.later(term.item, scope)
        if term.characters is None:
            return self.unfold(item)
        texts = Characters(((0, ir.MAX_CODE_POINT),), utf8=True, min=0, max=term.characters)
        return Both((item, texts))

    def _special_token(self, term: ir.SpecialToken, scope: _RuleScope | None) -> GraphNode:
        ids = (
            [term.token]
            if isinstance(term.token, int)
            else [token for token, text in self._special.items() if text == term.token]
        )
        if term.or_text and not ids:
            return Text(str(term.token).encode().decode("latin-1"))
        return Special(frozenset(chr(SPECIAL_BASE + token) for token in ids))

    def _token_set(self, term: ir.TokenSet, scope: _RuleScope | None) -> GraphNode:
        named = {token for token in term.tokens if isinstance(token, str)}
        ids = [token for token in term.tokens if not isinstance(token, str)]
        ids += [token for token, text in self._special.items() if text in named]
        ranges = tuple((token, token) if isinstance(token, int) else token for token in ids)
        return TokenOf(ranges, is_excluded=term.is_excluded)


_MAKERS: Final[NodeTable[Callable[[Linker, Any, _RuleScope | None], GraphNode]]] = NodeTable(
    "captures",
    {
        ir.Literal: lambda _, term, __: Text(term.data.decode("latin-1")),
        ir.ByteClass: lambda _, term, __: Characters(term.ranges, utf8=False, min=1, max=1),
        ir.CharClass: lambda _, term, __: Characters(term.ranges, utf8=True, min=1, max=1),
        ir.Sequence: Linker._sequence,
        ir.Choice: lambda linker, term, scope: Either(linker._several(term.items, scope)),
        ir.Repeat: Linker._repeat,
        ir.Permutation: lambda linker, term, scope: linker.members(term, scope, (frozenset(), 0, False)),
        ir.Reference: Linker._reference,
        ir.Intersection: lambda linker, term, scope: Both(linker._several(term.items, scope)),
        ir.Budget: Linker._budget,
        ir.Complement: lambda linker, term, scope: Not(linker.later(term.item, scope)),
        ir.Capture: lambda linker, term, scope: Captured(term.name, linker.later(term.item, scope)),
        ir.JsonString: lambda linker, term, scope: JsonText(linker.later(term.value, scope)),
        ir.SpecialToken: Linker._special_token,
        ir.TokenSet: Linker._token_set,
    },
    excluded=(ir.Shared, Described, ir.Distinct, ir.Label, ir.Tempered, ir.Rules),  # ``unfold`` looks through them
)


def symbols_of(taken: Iterable[int | bytes], texts: Items[bytes]) -> tuple[str, dict[int, tuple[int, int]]]:
    """Return the symbols of ids of tokens, whose bytes are ``texts``, and bytes; and the tokens, start to (id, end)."""
    pieces: list[str] = []
    tokens: dict[int, tuple[int, int]] = {}
    start = 0
    for step in taken:
        data = step if isinstance(step, bytes) else texts[step]
        pieces.append(data.decode("latin-1") if data or isinstance(step, bytes) else chr(SPECIAL_BASE + step))
        end = start + len(pieces[-1])
        if not isinstance(step, bytes):
            tokens[start] = step, end
        start = end
    return "".join(pieces), tokens
