"""Write any grammar term as text that :mod:`structgen.grammar.reader` reads back.

The text is EBNF with the operators of regular expressions; ``docs/reference/grammar-ir.md`` states its syntax.
Parentheses are written only where precedence needs them. A long sub-term that occurs several times is written once, as
``$1``, ``$2`` ... in a leading ``let``, so that a DAG of n nodes gives a text of size O(n).

A :class:`~structgen.grammar.nodes.description.Described` term is written as its item: a description is no part of the
language. Everything else survives the round trip.

Nothing recurses: each node gives a generator of pieces, and the generators are on an explicit stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.spelling import LABEL_MARKS, write_bytes, write_class, write_name, write_text
from structgen.grammar.visitor import NodeTable

__all__ = ["to_text"]

# A term is bound by `let` when it occurs at least twice and its text is at least this long.
_BIND_FROM: Final = 32

# Precedence, loosest first. A term below the level of its context gets parentheses.
_TERM, _CHOICE, _INTERSECTION, _SEQUENCE, _COMPLEMENT, _REPEAT, _ATOM = range(7)

_SHORT_COUNTS: Final = {(0, None): "*", (1, None): "+", (0, 1): "?"}

_Piece: TypeAlias = "str | tuple[Grammar, int]"
_Pieces: TypeAlias = Iterable[_Piece]


def to_text(grammar: Grammar, *, max_length: int | None = None) -> str:
    """Write ``grammar`` as text.

    Args:
        grammar: any term, closed or not.
        max_length: cut the text to this many characters, the last of them ``…``.  Such a text is written on
            one line and without ``let``, and only the part that is shown is computed.

    Returns:
        Without ``max_length``, a text for which ``reader.parse(text) == grammar`` up to descriptions.

    Raises:
        ValueError: ``max_length`` is not positive.

    Complexity: O(n) time and text for n distinct nodes and edges, with their literals, names and ranges;
        O(max_length) where that is given.

    >>> from structgen.grammar.nodes import Literal, Repeat
    >>> to_text(Repeat(Literal(b"ab"), 1, None))
    '"ab"+'
    """
    if max_length is not None:
        if max_length <= 0:
            raise ValueError(f"to_text: max_length must be positive; found {max_length}")
        return _cut(_TermWriter({}, " ", max_length).write(grammar), max_length)
    names = _terms_to_bind(grammar)
    writer = _TermWriter({digest: name for digest, (name, _) in names.items()}, "\n", None)
    pieces: list[str] = []
    if names:
        pieces.append("let")
        for name, term in names.values():
            pieces.append(f"\n  {name} = ")
            pieces.extend(writer.write(term, bound=True))
            pieces.append(";")
        pieces.append("\nin\n")
    pieces.extend(writer.write(grammar))
    return "".join(pieces)


def _cut(pieces: Iterable[str], max_length: int) -> str:
    parts: list[str] = []
    length = 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > max_length:
            return "".join(parts)[: max_length - 1] + "…"
    return "".join(parts)


def _bare(node: Grammar) -> Grammar:
    while isinstance(node, Described):
        node = node.item
    return node


def _terms_to_bind(root: Grammar) -> dict[bytes, tuple[str, Grammar]]:
    """Choose the terms to write once, as digest -> (name, term), dependencies first.

    Occurrences are counted between distinct contents, so the result does not depend on which of equal parts are the
    same object.
    """
    hash(root)  # digests of all nodes in one pass
    by_digest: dict[bytes, Grammar] = {}
    occurrences: dict[bytes, int] = {}
    for node in ir.postorder(root):
        if isinstance(node, Described) or node.digest in by_digest:
            continue
        by_digest[node.digest] = node
        for child in node.children:
            digest = _bare(child).digest
            occurrences[digest] = occurrences.get(digest, 0) + 1
    lengths: dict[bytes, int] = {}
    names: dict[bytes, tuple[str, Grammar]] = {}
    for digest, node in by_digest.items():  # children come first
        length = _own_length(node) + sum(lengths[_bare(child).digest] + 3 for child in node.children)
        if length >= _BIND_FROM and occurrences.get(digest, 0) >= 2:
            name = f"${len(names) + 1}"
            names[digest] = (name, node)
            length = len(name)
        lengths[digest] = length
    return names


def _own_length(node: Grammar) -> int:
    """About how many characters ``node`` adds to those of its children."""
    match node:
        case ir.Literal():
            return len(node.data) + 2
        case ir.ByteClass() | ir.CharClass():
            return 4 * len(node.ranges) + 2
        case ir.Rules():
            return 16 + sum(len(name) + 4 for name, _ in node.rules)
        case ir.Reference() | ir.Capture():
            return len(node.name)
        case ir.Permutation():
            return 20
        case ir.TokenSet():
            return 12 + 10 * len(node.tokens)
        case _:
            return 4


class _TermWriter:
    """Writes terms, with the names of bound terms in their place."""

    def __init__(self, names: Mapping[bytes, str], line_break: str, max_length: int | None) -> None:
        self._names = names
        self._break = line_break
        self._indent = "\n  " if line_break == "\n" else " "
        self._window = None if max_length is None else max_length + 1

    def write(self, root: Grammar, *, bound: bool = False) -> Iterator[str]:
        """Yield the text of ``root``; ``bound`` writes the term itself where it has a name."""
        first = self._node(root) if bound else self._in_place(root, _TERM)
        stack: list[Iterator[_Piece]] = [iter(first)]
        while stack:
            piece = next(stack[-1], None)
            if piece is None:
                stack.pop()
            elif isinstance(piece, str):
                yield piece
            else:
                stack.append(iter(self._in_place(*piece)))

    def _in_place(self, node: Grammar, level: int) -> _Pieces:
        node = _bare(node)
        if self._names:
            name = self._names.get(node.digest)
            if name is not None:
                return (name,)
        pieces = self._node(node)
        return _parenthesised(pieces) if _level(node) < level else pieces

    def _node(self, node: Grammar) -> _Pieces:
        return _WRITERS[type(node)](self, node)

    def _literal(self, node: ir.Literal) -> _Pieces:
        yield write_bytes(node.data if self._window is None else node.data[: self._window])

    def _repeat(self, node: ir.Repeat) -> _Pieces:
        yield node.item, _ATOM
        yield _SHORT_COUNTS.get((node.min, node.max)) or _count(node.min, node.max)

    def _permutation(self, node: ir.Permutation) -> _Pieces:
        yield "permutation" if (node.min, node.max) == (0, None) else f"permutation{_count(node.min, node.max)}"
        opening = "("
        for part in (node.required, node.optional, (node.rest,), (node.separator,)):
            yield opening
            opening = "; "
            for index, item in enumerate(part):
                if index:
                    yield ", "
                yield item, _TERM
        yield ")"

    def _rules(self, node: ir.Rules) -> _Pieces:
        yield "rules {"
        for index, (name, term) in enumerate(node.rules):
            yield f"{';' if index else ''}{self._indent}{write_name(name)} = "
            yield term, _TERM
        yield f"{self._break}}} in "
        yield node.body, _TERM

    def _budget(self, node: ir.Budget) -> _Pieces:
        bounds = (("tokens", node.tokens), ("characters", node.characters))
        shown = "".join(f"{what} {bound} " for what, bound in bounds if bound is not None)
        return _call(f"budget {shown}", node.item)

    def _special_token(self, node: ir.SpecialToken) -> _Pieces:
        name = "token?" if node.or_text else "token"
        yield f"{name}({node.token if isinstance(node.token, int) else write_text(node.token)})"

    def _token_set(self, node: ir.TokenSet) -> _Pieces:
        yield "tokens except (" if node.is_excluded else "tokens("
        yield ", ".join(
            write_text(token)
            if isinstance(token, str)
            else str(token)
            if isinstance(token, int)
            else "{} to {}".format(*token)
            for token in node.tokens
        )
        yield ")"


_WRITERS: Final[NodeTable[Callable[[_TermWriter, Any], _Pieces]]] = NodeTable(
    "printer",
    {
        ir.Literal: _TermWriter._literal,
        (ir.ByteClass, ir.CharClass): lambda _, node: write_class(node),
        ir.Sequence: lambda _, node: _joined(node.items, "", _COMPLEMENT),
        ir.Choice: lambda _, node: _joined(node.items, "|", _INTERSECTION),
        ir.Intersection: lambda _, node: _joined(node.items, "&", _SEQUENCE),
        ir.Complement: lambda _, node: ("~", (node.item, _COMPLEMENT)),
        ir.Repeat: _TermWriter._repeat,
        ir.Permutation: _TermWriter._permutation,
        ir.Reference: lambda _, node: (write_name(node.name),),
        ir.Rules: _TermWriter._rules,
        ir.Capture: lambda _, node: _call(f"@{write_name(node.name)}", node.item),
        ir.SpecialToken: _TermWriter._special_token,
        ir.TokenSet: _TermWriter._token_set,
        ir.Tempered: lambda _, node: _call(f'temperature "{node.temperature!r}" ', node.item),
        ir.JsonString: lambda _, node: _call("json", node.value),
        ir.Shared: lambda _, node: _call("shared", node.item),
        ir.Distinct: lambda _, node: _call(
            "distinct" + ("?" if node.is_spare else "*" if node.is_endless else ""), node.item
        ),
        ir.Label: lambda _, node: _call("label" + LABEL_MARKS[node.kind], node.item),
        ir.Budget: _TermWriter._budget,
    },
    excluded=(Described,),
)


def _level(node: Grammar) -> int:
    match node:
        case ir.Choice() | ir.Intersection() | ir.Sequence() if len(node.items) < 2:
            return _ATOM  # written in parentheses of their own
        case ir.Choice():
            return _CHOICE
        case ir.Intersection():
            return _INTERSECTION
        case ir.Sequence():
            return _SEQUENCE
        case ir.Complement():
            return _COMPLEMENT
        case ir.Repeat():
            return _REPEAT
        case ir.Rules():
            return _TERM
        case _:
            return _ATOM


def _count(low: int, high: int | None) -> str:
    return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _parenthesised(pieces: _Pieces) -> _Pieces:
    yield "("
    yield from pieces
    yield ")"


def _call(head: str, item: Grammar) -> _Pieces:
    return f"{head}(", (item, _TERM), ")"


def _joined(items: tuple[Grammar, ...], operator: str, level: int) -> _Pieces:
    if not items:
        yield f"({operator})"
    elif len(items) == 1:  # infix operators need two items: (| a), (& a), (, a)
        yield f"({operator or ','} "
        yield items[0], _TERM
        yield ")"
    else:
        separator = f" {operator} " if operator else " "
        for index, item in enumerate(items):
            if index:
                yield separator
            yield item, level
