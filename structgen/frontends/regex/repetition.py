"""Repetition of a node with assertions: counted and unbounded loops, and tempered loops.

The rounds of a loop form a graph. A node is the last character so far, the requirement of the first rounds on the left
of the loop, and what must follow the last round; an edge is one round. With ``^``, ``$`` and the
like, a loop passes through a few such nodes in order and stays in one of them at most, so the count remains a count:
``(^a|b){1,100000}`` is ``b{1,100000} | a b{0,99999}``.  Line anchors and word boundaries can make longer cycles; then
an unbounded loop is solved by state elimination, and a bounded one is written out.

A tempered loop, such as ``(?:(?!end).)*``, looks ahead in each round and then takes one character. In general a
look-ahead inside a loop needs an alternating automaton. One common case is simpler: each round takes one character, and
the text after the loop has a known length ``d``. Then the rounds are exactly the positions with more than ``d``
characters left, so a string is refused if a suffix of it longer than ``d`` matches (or does not match) the look-ahead:
``C* K & ~(anything (A & longer than d))``. If the text after the loop has a few lengths, each is a case. If it is what
the loop must not see, as in ``(?:(?!end).)*end`` before any string, the look-ahead forbids nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structgen.frontends.regex.context_table import (
    ANY_TEXT,
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
from structgen.frontends.regex.syntax import (
    ANY,
    CHARACTERS,
    EDGE,
    Boundary,
    Cell,
    Concatenation,
    ContextAlphabet,
    Lookahead,
    Loop,
    Node,
)
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.visitor import fold

__all__ = ["TemperedShape", "TooManyRounds", "by_length", "repeated", "tempered_language", "tempered_shape"]

MAX_WRITTEN_ROUNDS: Final = 500
_MAX_POSITIONS: Final = 64
_MAX_PATHS: Final = 256
_NOTHING_YET: Final = 0


class TooManyRounds(Exception):
    """The loops of a pattern cannot be written out within ``MAX_WRITTEN_ROUNDS`` rounds, or pass too many positions."""


@dataclass(frozen=True, slots=True)
class _LoopPosition:
    """A position in the rounds of a loop.

    Attributes:
        ending: bits of the last character so far; 0 without text.
        required: the requirement of the first rounds on the left of the loop.
        following: what must follow the last rounds.
    """

    ending: int
    required: int
    following: int


_START: Final = _LoopPosition(_NOTHING_YET, ANY, ANY)
_Graph = dict[_LoopPosition, dict[_LoopPosition, Grammar]]


def repeated(composer: Composer, body: Table, minimum: int, maximum: int | None) -> Table:
    """``body`` from ``minimum`` to ``maximum`` times.

    Raises:
        TooManyRounds: the loop must be written out, and all such loops together are too long.
    """
    if minimum == 0 and maximum == 1:
        return table_union([*EMPTY_TABLE.items(), *body.items()])
    graph = _graph(composer, body, counts_empty_rounds=minimum > 0)
    paths = list(islice(_paths(graph), _MAX_PATHS + 1))
    if 0 < len(paths) <= _MAX_PATHS and all(_is_countable(path, graph, minimum, maximum) for path in paths):
        return table_union(_counted(composer, paths, graph, minimum, maximum))
    return _written_out(composer, body, minimum, maximum)


def _graph(composer: Composer, body: Table, *, counts_empty_rounds: bool) -> _Graph:
    """The positions that rounds of ``body`` reach.

    Empty rounds matter only for a minimum count; otherwise they are left out.
    """
    blocks = _blocks(composer.alphabet, body)
    graph: _Graph = {}
    waiting = [_START]
    while waiting:
        position = waiting.pop()
        if position in graph:
            continue
        edges: dict[_LoopPosition, list[Grammar]] = {}
        for cell, term in body.items():
            for target, text in _rounds(composer, position, cell, term, blocks):
                edges.setdefault(target, []).append(text)
            if counts_empty_rounds and composer.terms.nullable(term):
                for target in _empty_round(position, cell):
                    edges.setdefault(target, []).append(ir.EPSILON)
        if len(graph) == _MAX_POSITIONS:
            raise TooManyRounds
        graph[position] = {target: either(texts) for target, texts in edges.items()}
        waiting.extend(graph[position])
    return graph


def _blocks(alphabet: ContextAlphabet, body: Table) -> list[int]:
    """The blocks of the alphabet, grouped by the left requirements that they meet.

    The single group ``ANY`` means that the last character does not matter, nor whether there is one: every left
    requirement is none, or the very start. Treating an empty round as one with text then only loses strings that the
    empty round reaches too.
    """
    if all(left in (ANY, EDGE) for left, _ in body):
        return [ANY]
    return grouped(alphabet.blocks, [left for left, _ in body])


def _rounds(
    composer: Composer, position: _LoopPosition, cell: Cell, term: Grammar, blocks: list[int]
) -> Iterator[tuple[_LoopPosition, Grammar]]:
    """The non-empty rounds of ``cell`` at ``position``."""
    composer.spend(1)
    left, right = cell
    required = position.required
    if position.ending == _NOTHING_YET:
        required &= left
        if not required:
            return
    elif position.ending & left == 0:
        return
    for text, residual in composer.keeping(term, position.following):
        following = right & residual
        if not following:
            continue
        for block in blocks:
            part = text if block == ANY else composer.terms.last_in(text, block)
            if part is not None:
                yield _LoopPosition(block & CHARACTERS, required, following), part


def _empty_round(position: _LoopPosition, cell: Cell) -> Iterator[_LoopPosition]:
    left, right = cell
    required = position.required
    if position.ending == _NOTHING_YET:
        required &= left
    elif position.ending & left == 0:
        return
    if required and position.following & right:
        yield _LoopPosition(position.ending, required, position.following & right)


_Path = tuple[_LoopPosition, ...]


def _paths(graph: _Graph) -> Iterator[_Path]:
    """All acyclic paths through ``graph`` from its start; none at all if it has a long cycle."""
    if _has_long_cycle(graph):
        return
    stack: list[_Path] = [(_START,)]
    while stack:
        path = stack.pop()
        yield path
        stack.extend((*path, target) for target in graph[path[-1]] if target != path[-1])


def _has_long_cycle(graph: _Graph) -> bool:
    """Whether ``graph`` has a cycle through two or more positions."""
    entering = dict.fromkeys(graph, 0)
    for position, edges in graph.items():
        for target in edges:
            entering[target] += target != position
    ready = [position for position, count in entering.items() if count == 0]
    done = 0
    while ready:
        position = ready.pop()
        done += 1
        for target in graph[position]:
            if target != position:
                entering[target] -= 1
                if entering[target] == 0:
                    ready.append(target)
    return done < len(graph)


def _stays(path: _Path, graph: _Graph) -> list[_LoopPosition]:
    """The positions of ``path`` with any number of non-empty rounds."""
    return [
        position for position in path if position in graph[position] and graph[position][position] is not ir.EPSILON
    ]


def _is_countable(path: _Path, graph: _Graph, minimum: int, maximum: int | None) -> bool:
    return len(_stays(path, graph)) <= (1 if minimum or maximum is not None else len(path))


def _counted(
    composer: Composer, paths: list[_Path], graph: _Graph, minimum: int, maximum: int | None
) -> Iterator[tuple[Cell, Grammar]]:
    """The strings of each path; its other rounds are subtracted from the counts of its long stay."""
    for path in paths:
        composer.spend(1)
        steps = len(path) - 1
        stays = _stays(path, graph)
        high = None if maximum is None else maximum - steps
        padded = any(
            position in graph[position] and composer.terms.nullable(graph[position][position]) for position in path
        )
        low = 0 if padded else max(minimum - steps, 0)
        if (high is not None and high < 0) or (not stays and low > 0):
            continue
        text: Grammar = ir.EPSILON
        for index, position in enumerate(path):
            if index:
                text = then(text, graph[path[index - 1]][position])
            if position in stays and high != 0:
                text = then(text, ir.Repeat(graph[position][position], low, high))
        yield (path[-1].required, path[-1].following), text


def _written_out(composer: Composer, body: Table, minimum: int, maximum: int | None) -> Table:
    composer.written_rounds += minimum if maximum is None else maximum
    if composer.written_rounds > MAX_WRITTEN_ROUNDS:
        raise TooManyRounds
    if maximum is None:
        table = table_union(_eliminated(composer, _graph(composer, body, counts_empty_rounds=False)))
    else:
        table = EMPTY_TABLE
        for _ in range(maximum - minimum):
            table = table_union([*EMPTY_TABLE.items(), *composer.composed(body, table).items()])
    for _ in range(minimum):
        table = composer.composed(body, table)
    return table


def _eliminated(composer: Composer, graph: _Graph) -> Iterator[tuple[Cell, Grammar]]:
    """All strings of all paths through ``graph``, by state elimination (Kleene)."""
    yield (_START.required, _START.following), ir.EPSILON
    edges: dict[_LoopPosition, dict[_LoopPosition | Cell, Grammar]] = {}
    for position, targets in graph.items():
        edges[position] = dict(targets.items())
        if position != _START:
            edges[position][position.required, position.following] = ir.EPSILON
    for position in [position for position in graph if position != _START]:
        leaving = edges.pop(position)
        again = leaving.pop(position, None)
        for others in edges.values():
            entering = others.pop(position, None)
            if entering is None:
                continue
            if again is not None:
                entering = then(entering, ir.Repeat(again, 0, None))
            composer.spend(len(leaving))
            for target, text in leaving.items():
                through = then(entering, text)
                others[target] = either([others[target], through]) if target in others else through
    for target, text in edges[_START].items():
        if not isinstance(target, _LoopPosition):
            yield target, text


ByLength = dict[int, Grammar]
"""Length in characters -> the strings of a term that have it."""

_MAX_LENGTHS: Final = 32


@dataclass(frozen=True, slots=True)
class TemperedShape:
    """One round of a tempered loop: the look-aheads, then the character."""

    looks: tuple[Lookahead | Boundary, ...]
    character: Grammar


def tempered_shape(loop: Loop) -> TemperedShape | None:
    """The tempered shape of ``loop``, or ``None``."""
    items: tuple[Node, ...] = loop.item.items if isinstance(loop.item, Concatenation) else (loop.item,)
    *looks, character = items
    if not isinstance(character, Grammar) or set(by_length(character) or ()) != {1}:
        return None
    found = tuple(look for look in looks if isinstance(look, Lookahead | Boundary))
    return TemperedShape(found, character) if len(found) == len(looks) else None


def by_length(root: Grammar) -> ByLength | None:
    """``root`` split by string length in characters; ``None`` for many or unknown lengths."""

    def combine(term: Grammar, parts: list[ByLength | None]) -> ByLength | None:
        split = _split(term, [part for part in parts if part is not None]) if None not in parts else None
        return None if split is None or len(split) > _MAX_LENGTHS else split

    return fold(root, combine)


def tempered_language(character: Grammar, seen: list[tuple[Grammar, bool]], tail: Grammar) -> Grammar | None:
    """The strings of the loop followed by ``tail``, or ``None`` if the case is unsupported.

    Args:
        character: the character of a round.
        seen: the language of each look-ahead up to the end of the text, and whether it is negative.
        tail: the language after the loop, up to the end of the text.
    """
    if seen == [(tail, True)]:
        # The loop ends where the look-ahead fails; any match of the tail can be taken as the first one.
        return then(ir.Repeat(character, 0, None), tail)
    follows = by_length(tail)
    if follows is None:
        return None
    languages: list[Grammar] = []
    for length, text in follows.items():
        longer = ir.Repeat(ir.ANY_CHAR, length + 1, None)
        language = then(ir.Repeat(character, 0, None), text)
        for ahead, negative in seen:
            bad = both(longer, ahead if negative else ir.Complement(ahead))
            language = both(language, ir.Complement(then(ANY_TEXT, bad)))
        languages.append(language)
    return either(languages)


def _split(term: Grammar, parts: list[ByLength]) -> ByLength | None:
    match term:
        case ir.Literal(data=data):
            return {len(data.decode()): term}
        case ir.CharClass():
            return {1: term}
        case ir.Sequence():
            return _product(parts)
        case ir.Choice():
            return gathered([pair for part in parts for pair in part.items()])
        case ir.Capture(name=name):
            return {length: ir.Capture(name, text) for length, text in parts[0].items()}
        case ir.Repeat(item=item, min=minimum, max=int(maximum)) if len(parts[0]) == 1:
            if maximum - minimum < _MAX_LENGTHS:
                [length] = parts[0]
                counts = range(minimum, maximum + 1)
                return gathered([(count * length, ir.Repeat(item, count, count)) for count in counts])
    return None


def _product(parts: list[ByLength]) -> ByLength | None:
    done: ByLength = {0: ir.EPSILON}
    for part in parts:
        pairs = [(one + other, then(left, right)) for one, left in done.items() for other, right in part.items()]
        done = gathered(pairs)
        if len(done) > _MAX_LENGTHS:
            return None
    return done
