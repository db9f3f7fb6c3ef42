"""Counted and unbounded repetition of a node that holds assertions.

The turns of a loop are walked as a graph.  A node of it says what the text so far ends with, what the first turns
required on the left of the loop, and what the last turn promised about what follows; an edge is one turn.  With
``^``, ``$`` and their like, a loop passes through a few such nodes in order and stays for long in one of them at
most, so the count can be kept as a count: ``(^a|b){1,100000}`` is ``b{1,100000} | a b{0,99999}``.  Line anchors and
word boundaries can make longer cycles; then an unbounded loop is solved by eliminating nodes, and a bounded one is
written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structgen.grammar.nodes import EPSILON, Grammar, Repeat
from structgen.grammar.regex.context import ANY, CHARACTERS, EDGE, Alphabet, Cell
from structgen.grammar.regex.joining import either, then
from structgen.grammar.regex.table import EMPTY_TABLE, Composer, Table, union

__all__ = ["TooManyTurns", "repeated"]

MAX_WRITTEN_TURNS: Final = 500
_MAX_PLACES: Final = 64
_MAX_PATHS: Final = 256
_NOTHING_YET: Final = 0


class TooManyTurns(Exception):
    """The loops of a pattern cannot be written out within ``MAX_WRITTEN_TURNS`` turns, or pass too many places."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a walk through the turns of a loop stands.

    Attributes:
        ending: bits of the character that the text so far ends with; 0 while there is no text.
        required: what the first turns required on the left of the loop.
        promised: what the last turns promised about what follows.
    """

    ending: int
    required: int
    promised: int


_START: Final = _Place(_NOTHING_YET, ANY, ANY)
_Graph = dict[_Place, dict[_Place, Grammar]]


def repeated(composer: Composer, body: Table, minimum: int, maximum: int | None) -> Table:
    """``body`` from ``minimum`` to ``maximum`` times.

    Raises:
        TooManyTurns: the loop must be written out, and is too long for that beside those before it.
    """
    if minimum == 0 and maximum == 1:
        return union([*EMPTY_TABLE.items(), *body.items()])
    graph = _graph(composer, body, counts_empty_turns=minimum > 0)
    paths = list(islice(_paths(graph), _MAX_PATHS + 1))
    if 0 < len(paths) <= _MAX_PATHS and all(_is_countable(path, graph, minimum, maximum) for path in paths):
        return union(_counted(composer, paths, graph, minimum, maximum))
    return _written_out(composer, body, minimum, maximum)


def _graph(composer: Composer, body: Table, *, counts_empty_turns: bool) -> _Graph:
    """The places that turns of ``body`` lead to.

    Turns without text only matter where a minimum must be reached: otherwise they can be left out.
    """
    blocks = _blocks(composer.alphabet, body)
    graph: _Graph = {}
    waiting = [_START]
    while waiting:
        place = waiting.pop()
        if place in graph:
            continue
        edges: dict[_Place, list[Grammar]] = {}
        for cell, term in body.items():
            for target, text in _turns(composer, place, cell, term, blocks):
                edges.setdefault(target, []).append(text)
            if counts_empty_turns and composer.terms.nullable(term):
                for target in _empty_turn(place, cell):
                    edges.setdefault(target, []).append(EPSILON)
        if len(graph) == _MAX_PLACES:
            raise TooManyTurns
        graph[place] = {target: either(texts) for target, texts in edges.items()}
        waiting.extend(graph[place])
    return graph


def _blocks(alphabet: Alphabet, body: Table) -> list[int]:
    """The blocks of the alphabet, grouped by which requirements on the left they meet.

    The one group ``ANY`` says that what a text ends with need not be known, nor whether there is any: every
    requirement on the left is none, or to be at the very start.  Taking an empty turn for one with text then only
    loses texts that the empty turn itself leads to as well.
    """
    if all(left in (ANY, EDGE) for left, _ in body):
        return [ANY]
    groups: dict[tuple[bool, ...], int] = {}
    for bit in alphabet.blocks:
        signature = tuple(bool(left & bit) for left, _ in body)
        groups[signature] = groups.get(signature, 0) | bit
    return list(groups.values())


def _turns(
    composer: Composer, place: _Place, cell: Cell, term: Grammar, blocks: list[int]
) -> Iterator[tuple[_Place, Grammar]]:
    """The turns with text that ``cell`` offers at ``place``."""
    composer.spend(1)
    left, right = cell
    required = place.required
    if place.ending == _NOTHING_YET:
        required &= left
        if not required:
            return
    elif place.ending & left == 0:
        return
    for text, residual in composer.keeping(term, place.promised):
        promised = right & residual
        if not promised:
            continue
        for block in blocks:
            part = text if block == ANY else composer.terms.last_in(text, block)
            if part is not None:
                yield _Place(block & CHARACTERS, required, promised), part


def _empty_turn(place: _Place, cell: Cell) -> Iterator[_Place]:
    left, right = cell
    required = place.required
    if place.ending == _NOTHING_YET:
        required &= left
    elif place.ending & left == 0:
        return
    if required and place.promised & right:
        yield _Place(place.ending, required, place.promised & right)


_Path = tuple[_Place, ...]


def _paths(graph: _Graph) -> Iterator[_Path]:
    """All ways through ``graph`` from its start, without going round a cycle; none at all if it has a long one."""
    if _has_long_cycle(graph):
        return
    stack: list[_Path] = [(_START,)]
    while stack:
        path = stack.pop()
        yield path
        stack.extend((*path, target) for target in graph[path[-1]] if target != path[-1])


def _has_long_cycle(graph: _Graph) -> bool:
    """Whether ``graph`` has a cycle through two places or more."""
    entering = dict.fromkeys(graph, 0)
    for place, edges in graph.items():
        for target in edges:
            entering[target] += target != place
    ready = [place for place, count in entering.items() if count == 0]
    done = 0
    while ready:
        place = ready.pop()
        done += 1
        for target in graph[place]:
            if target != place:
                entering[target] -= 1
                if entering[target] == 0:
                    ready.append(target)
    return done < len(graph)


def _stays(path: _Path, graph: _Graph) -> list[_Place]:
    """The places of ``path`` where any number of turns with text may be spent."""
    return [place for place in path if place in graph[place] and graph[place][place] is not EPSILON]


def _is_countable(path: _Path, graph: _Graph, minimum: int, maximum: int | None) -> bool:
    return len(_stays(path, graph)) <= (1 if minimum or maximum is not None else len(path))


def _counted(
    composer: Composer, paths: list[_Path], graph: _Graph, minimum: int, maximum: int | None
) -> Iterator[tuple[Cell, Grammar]]:
    """The texts of each path, with the turns that it takes beside its long stay subtracted from the counts."""
    for path in paths:
        composer.spend(1)
        steps = len(path) - 1
        stays = _stays(path, graph)
        most = None if maximum is None else maximum - steps
        padded = any(place in graph[place] and composer.terms.nullable(graph[place][place]) for place in path)
        least = 0 if padded else max(minimum - steps, 0)
        if (most is not None and most < 0) or (not stays and least > 0):
            continue
        text: Grammar = EPSILON
        for index, place in enumerate(path):
            if index:
                text = then(text, graph[path[index - 1]][place])
            if place in stays and most != 0:
                text = then(text, Repeat(graph[place][place], least, most))
        yield (path[-1].required, path[-1].promised), text


def _written_out(composer: Composer, body: Table, minimum: int, maximum: int | None) -> Table:
    composer.written_turns += minimum if maximum is None else maximum
    if composer.written_turns > MAX_WRITTEN_TURNS:
        raise TooManyTurns
    if maximum is None:
        table = union(_eliminated(composer, _graph(composer, body, counts_empty_turns=False)))
    else:
        table = EMPTY_TABLE
        for _ in range(maximum - minimum):
            table = union([*EMPTY_TABLE.items(), *composer.composed(body, table).items()])
    for _ in range(minimum):
        table = composer.composed(body, table)
    return table


def _eliminated(composer: Composer, graph: _Graph) -> Iterator[tuple[Cell, Grammar]]:
    """All texts of all ways through ``graph``, by eliminating its places one after the other (Kleene)."""
    yield (_START.required, _START.promised), EPSILON
    edges: dict[_Place, dict[_Place | Cell, Grammar]] = {}
    for place, targets in graph.items():
        edges[place] = dict(targets.items())
        if place != _START:
            edges[place][place.required, place.promised] = EPSILON
    for place in [place for place in graph if place != _START]:
        leaving = edges.pop(place)
        again = leaving.pop(place, None)
        for others in edges.values():
            entering = others.pop(place, None)
            if entering is None:
                continue
            if again is not None:
                entering = then(entering, Repeat(again, 0, None))
            composer.spend(len(leaving))
            for target, text in leaving.items():
                through = then(entering, text)
                others[target] = either([others[target], through]) if target in others else through
    for target, text in edges[_START].items():
        if not isinstance(target, _Place):
            yield target, text
