"""From the syntax tree of a pattern to one IR term.

The pattern is folded from its end to its start. The accumulated value is the language of *everything after* a position
up to the end of the text: one term for each open requirement on the left context (a ``Suffix``). Since the whole rest
is known, an assertion about it is an intersection with it: a look-ahead ``(?=A)B`` is ``(A then anything) & B``, and
``(?!A)B`` is ``~(A then anything) & B``.

Inside a loop the rest is unknown, so its body becomes a table first (``context_table``, ``repetition``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from structgen.errors import LimitExceeded
from structgen.frontends.regex.context_table import (
    ANY_TEXT,
    ANYWHERE,
    EMPTY_TABLE,
    Composer,
    Table,
    both,
    either,
    gathered,
    grouped,
    table_union,
    then,
)
from structgen.frontends.regex.dialect import refused
from structgen.frontends.regex.repetition import TooManyRounds, repeated, tempered_language, tempered_shape
from structgen.frontends.regex.syntax import (
    ANY,
    CHARACTERS,
    EDGE,
    Alternatives,
    Boundary,
    Cell,
    Concatenation,
    ContextAlphabet,
    Lookahead,
    Loop,
    Named,
    Node,
    Span,
)
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.visitor import Call, trampoline

__all__ = ["full_language", "search_language_of"]

Suffix = dict[int, Grammar]
"""Requirement on the left context -> the strings from here to the end."""

_AT_END: Final[Suffix] = {ANY: ir.EPSILON}
_ANY_REST: Final[Suffix] = {ANY: ANY_TEXT}


def full_language(node: Node, text: str, alphabet: ContextAlphabet, max_nodes: int) -> Grammar:
    """The strings that ``node`` matches from end to end.

    Raises:
        UnsupportedFeature: a look-ahead in a loop, or a loop that cannot be written out.
        LimitExceeded: the term has more than ``max_nodes`` distinct nodes.
    """
    if isinstance(node, Grammar):
        return node
    suffix = trampoline(_Translator(text, alphabet, max_nodes).suffix(node, _AT_END))
    return _bounded([term for required, term in suffix.items() if required & EDGE], max_nodes)


def search_language_of(node: Node, text: str, alphabet: ContextAlphabet, max_nodes: int) -> Grammar:
    """The strings in which ``node`` matches somewhere.

    Raises:
        UnsupportedFeature: as for :func:`full_language`.
        LimitExceeded: as for :func:`full_language`.
    """
    whole = _anchored(node, alphabet)
    if whole is not None:
        return _bounded([whole], max_nodes)
    translator = _Translator(text, alphabet, max_nodes)
    if isinstance(node, Grammar):
        suffix = translator.prefixed(node, _ANY_REST)
    else:
        suffix = trampoline(translator.suffix(node, _ANY_REST))
    found: list[Grammar] = []
    for required, term in suffix.items():
        if required == ANY:
            found.append(term if term is ANY_TEXT else then(ANY_TEXT, term))
            continue
        if required & EDGE:
            found.append(term)
        if required & CHARACTERS:
            found.append(then(then(ANY_TEXT, alphabet.characters(required)), term))
    if isinstance(node, Grammar):
        return found[0]
    return _bounded(found, max_nodes)


def _anchored(node: Node, alphabet: ContextAlphabet) -> Grammar | None:
    """The term between ``^`` and ``$``, the common case; ``None`` for other patterns.

    The result is that of the fold, without its work.
    """
    if not isinstance(node, Concatenation) or len(node.items) < 2:
        return None
    first, *items, last = node.items
    if not (isinstance(first, Boundary) and isinstance(last, Boundary) and len(first.cells) == len(last.cells) == 1):
        return None
    mask = alphabet.mask
    (before, right), (left, after) = first.cells[0], last.cells[0]
    if (mask(before), mask(right), mask(left), mask(after)) != (EDGE, ANY, ANY, EDGE):
        return None
    term = ir.EPSILON
    for item in reversed(items):
        if not isinstance(item, Grammar):
            return None
        term = then(item, term)
    return term


def _bounded(found: list[Grammar], max_nodes: int) -> Grammar:
    term = either(found) if found else ir.EMPTY
    if sum(1 for _ in islice(postorder(term), max_nodes + 1)) > max_nodes:
        raise LimitExceeded("regex", limit="grammar_nodes", maximum=max_nodes, evidence="its assertions multiply")
    return term


class _Translator:
    """The fold over one pattern."""

    __slots__ = ("composer", "text")

    def __init__(self, text: str, alphabet: ContextAlphabet, max_nodes: int) -> None:
        self.text = text
        self.composer = Composer(alphabet, max_nodes)

    def suffix(self, node: Node, rest: Suffix) -> Call[Suffix]:
        """The strings of ``node`` followed by ``rest``."""
        match node:
            case Boundary():
                return self.asserted(node, rest)
            case Concatenation(items=items):
                for item in reversed(items):
                    if isinstance(item, Grammar):
                        rest = self.prefixed(item, rest)
                    elif isinstance(item, Boundary):
                        rest = self.asserted(item, rest)
                    else:
                        rest = yield self.suffix(item, rest)
                return rest
            case Alternatives(items=items):
                cells: list[tuple[int, Grammar]] = []
                for item in items:
                    cells.extend((yield self.suffix(item, rest)).items())
                return gathered(cells)
            case Lookahead(body=body):
                ahead = yield self.suffix(body, _ANY_REST)
                return self.looked_ahead(node, ahead, rest)
            case Loop():
                found: Suffix = yield self.looped(node, rest)
                return found
            case Named():
                found = yield self.captured(node, rest)
                return found
        return self.prefixed(node, rest)

    def prefixed(self, term: Grammar, rest: Suffix) -> Suffix:
        """``term``, without assertions, followed by ``rest``."""
        if len(rest) == 1 and ANY in rest:
            tail = rest[ANY]
            if tail is ANY_TEXT and self.composer.terms.nullable(term):
                return _ANY_REST
            return {ANY: then(term, tail)}
        return gathered(
            (outer, then(before, tail))
            for preceding, tail in rest.items()
            for outer, before in self.composer.before(term, ANY, preceding)
        )

    def asserted(self, node: Boundary, rest: Suffix) -> Suffix:
        """``rest`` where the assertion ``node`` holds."""
        return gathered(
            (left & preceding, part)
            for left, following in self.masks(node)
            for preceding, tail in rest.items()
            if left & preceding
            for part in self.keeping(tail, following)
        )

    def masks(self, node: Boundary) -> list[Cell]:
        mask = self.composer.alphabet.mask
        cells = [(mask(left), mask(right)) for left, right in node.cells]
        return [cell for cell in cells if cell[0] and cell[1]]

    def keeping(self, tail: Grammar, following: int) -> Iterable[Grammar]:
        """The strings of ``tail`` (up to the end of the text) that begin as ``following`` requires."""
        if following == ANY or (tail is ir.EPSILON and following & EDGE):
            return (tail,)
        terms = self.composer.terms
        if tail is not ir.EPSILON and following & CHARACTERS == 0 and terms.has_capture(tail):
            # Restricting the rest to its shortest strings would lose its captures.
            short = [ir.Literal(b"\n")] if following != EDGE else []
            return (ir.Intersection((tail, either([ir.EPSILON, *short]))),)
        return [part for _, part in self.composer.after(tail, EDGE, following)]

    def looked_ahead(self, node: Lookahead, ahead: Suffix, rest: Suffix) -> Suffix:
        """``rest`` intersected with ``ahead`` (or with its complement, for a negative look-ahead)."""
        cells: list[tuple[int, Grammar]] = []
        for preceding, tail in rest.items():
            self.composer.spend(2)
            if not node.negative:
                cells.extend((preceding & left, both(tail, seen)) for left, seen in ahead.items() if preceding & left)
                continue
            # The left context decides which parts of the look-ahead apply: one case each.
            for block in _cases(self.composer.alphabet, ahead):
                if preceding & block:
                    seen = [term for left, term in ahead.items() if left & block]
                    cells.append((preceding & block, both(tail, ir.Complement(either(seen))) if seen else tail))
        return gathered(cells)

    def looped(self, node: Loop, rest: Suffix) -> Call[Suffix]:
        if not node.has_lookahead:
            table = yield self.table(node)
            return self.applied(table, rest)
        if node.max == 1:
            once: Suffix = yield self.suffix(node.item, rest)
            return gathered([*rest.items(), *once.items()])
        if node.min <= 1 and rest == _ANY_REST:
            # If any text may follow, it covers the matches of further rounds.
            if node.min:
                rest = yield self.suffix(node.item, rest)
            return rest
        if node.max is None and node.min <= 1:
            tempered: Suffix | None = yield self.tempered(node, rest)
            if tempered is not None:
                if node.min:
                    tempered = yield self.suffix(node.item, tempered)
                return tempered
        raise self.lookahead_in_loop(node.span)

    def lookahead_in_loop(self, span: Span) -> Exception:
        return refused(
            self.text,
            span,
            "look-ahead inside a repeat",
            "write what may be repeated without looking ahead, or move the look-ahead before the repeat",
            reason="is not supported",
        )

    def tempered(self, node: Loop, rest: Suffix) -> Call[Suffix | None]:
        """A tempered loop, if its shape is supported; else ``None``."""
        shape = tempered_shape(node)
        if shape is None or set(rest) != {ANY}:
            return None
        seen: list[tuple[Grammar, bool]] = []
        for look in shape.looks:
            # A boundary before arbitrary text is a look-ahead too.
            body, negative = (look, False) if isinstance(look, Boundary) else (look.body, look.negative)
            ahead = yield self.suffix(body, _ANY_REST)
            if any(left != ANY for left in ahead):
                return None
            seen.append((ahead.get(ANY, ir.EMPTY), negative))
        term = tempered_language(shape.character, seen, rest[ANY])
        return None if term is None else {ANY: term}

    def captured(self, node: Named, rest: Suffix) -> Call[Suffix]:
        if not node.has_lookahead:
            table = yield self.table(node)
            return self.applied(table, rest)
        if rest != _AT_END:
            raise refused(
                self.text,
                node.span,
                "look-ahead inside a named group",
                "make the group unnamed, or move the look-ahead before it",
                reason="is only supported where nothing follows the group",
            )
        inner = yield self.suffix(node.item, _AT_END)
        return {left: ir.Capture(node.name, term) for left, term in inner.items()}

    def applied(self, table: Table, rest: Suffix) -> Suffix:
        """The strings of ``table`` followed by ``rest`` (up to the end of the text)."""
        whole = self.composer.composed(table, {(left, EDGE): tail for left, tail in rest.items()})
        return gathered((left, term) for (left, _), term in whole.items())

    def table(self, node: Node) -> Call[Table]:
        """The table of a node inside a loop."""
        match node:
            case Boundary():
                return table_union([(cell, ir.EPSILON) for cell in self.masks(node)])
            case Concatenation(items=items):
                table = EMPTY_TABLE
                for item in reversed(items):
                    before = yield self.table(item)
                    table = self.composer.composed(before, table)
                return table
            case Alternatives(items=items):
                cells_of_items: list[tuple[Cell, Grammar]] = []
                for item in items:
                    cells_of_items.extend((yield self.table(item)).items())
                return table_union(cells_of_items)
            case Loop(item=item, min=minimum, max=maximum):
                body = yield self.table(item)
                try:
                    return repeated(self.composer, body, minimum, maximum)
                except TooManyRounds:
                    raise refused(
                        self.text,
                        node.span,
                        "large counted repeat of an assertion",
                        "use a smaller count, an unbounded repeat, or move the assertion out",
                        reason="cannot be written out",
                    ) from None
            case Named(name=name, item=item):
                inner = yield self.table(item)
                return {cell: ir.Capture(name, term) for cell, term in inner.items()}
            case Lookahead():
                raise self.lookahead_in_loop(node.span)
        return {ANYWHERE: node}


def _cases(alphabet: ContextAlphabet, ahead: Suffix) -> list[int]:
    """The left contexts, grouped by the cells of ``ahead`` that they meet."""
    groups = grouped((EDGE, *alphabet.blocks), list(ahead))
    return groups if len(groups) > 1 else [ANY]
