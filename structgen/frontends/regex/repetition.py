"""Repetition of a node that holds assertions: counted and unbounded loops, and tempered loops.

The turns of a loop are walked as a graph.  A node of it says what the string so far ends with, what the first turns
required on the left of the loop, and what the last turn promised about what follows; an edge is one turn.  With
``^``, ``$`` and their like, a loop passes through a few such nodes in order and stays for long in one of them at
most, so the count can be kept as a count: ``(^a|b){1,100000}`` is ``b{1,100000} | a b{0,99999}``.  Line anchors and
word boundaries can make longer cycles; then an unbounded loop is solved by eliminating nodes, and a bounded one is
written out.

A tempered loop, such as ``(?:(?!end).)*``, looks ahead on each turn and then takes one character.  In general a
look-ahead inside a loop makes an alternating automaton.  One shape is simpler, and common: the turns
take one character each and what follows the loop has a known length ``d``.  Then the turns are at exactly the
positions with more than ``d`` characters left, so a string is refused when some rest of it, longer than ``d``, does
(not) belong to what was looked for: ``C* K & ~(anything (A & longer than d))``.  What follows may have a few
lengths; each is a case of its own.  And where it is just what the loop must not see, as in ``(?:(?!end).)*end``
before any string, the look-ahead forbids nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from structgen.frontends.regex.context import ANY, CHARACTERS, EDGE, Cell, ContextAlphabet
from structgen.frontends.regex.context_table import (
    ANY_TEXT,
    EMPTY_TABLE,
    Composer,
    Table,
    both,
    either,
    table_union,
    then,
)
from structgen.frontends.regex.syntax import Boundary, Concatenation, Lookahead, Loop, Node
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Literal,
    Repeat,
    Sequence,
)
from structgen.grammar.visitor import fold

__all__ = ["TemperedShape", "TooManyTurns", "repeated", "tempered_language", "tempered_shape"]

MAX_WRITTEN_TURNS: Final = 500
_MAX_POSITIONS: Final = 64
_MAX_PATHS: Final = 256
_NOTHING_YET: Final = 0


class TooManyTurns(Exception):
    """The loops of a pattern cannot be written out within ``MAX_WRITTEN_TURNS`` turns, or pass too many places."""


@dataclass(frozen=True, slots=True)
class _LoopPosition:
    """Where a walk through the turns of a loop stands.

    Attributes:
        ending: bits of the character that the text so far ends with; 0 while there is no text.
        required: what the first turns required on the left of the loop.
        promised: what the last turns promised about what follows.
    """

    ending: int
    required: int
    promised: int


_START: Final = _LoopPosition(_NOTHING_YET, ANY, ANY)
_Graph = dict[_LoopPosition, dict[_LoopPosition, Grammar]]


def repeated(composer: Composer, body: Table, minimum: int, maximum: int | None) -> Table:
    """``body`` from ``minimum`` to ``maximum`` times.

    Raises:
        TooManyTurns: the loop must be written out, and is too long for that beside those before it.
    """
    if minimum == 0 and maximum == 1:
        return table_union([*EMPTY_TABLE.items(), *body.items()])
    graph = _graph(composer, body, counts_empty_turns=minimum > 0)
    paths = list(islice(_paths(graph), _MAX_PATHS + 1))
    if 0 < len(paths) <= _MAX_PATHS and all(_is_countable(path, graph, minimum, maximum) for path in paths):
        return table_union(_counted(composer, paths, graph, minimum, maximum))
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
        edges: dict[_LoopPosition, list[Grammar]] = {}
        for cell, term in body.items():
            for target, text in _turns(composer, place, cell, term, blocks):
                edges.setdefault(target, []).append(text)
            if counts_empty_turns and composer.terms.nullable(term):
                for target in _empty_turn(place, cell):
                    edges.setdefault(target, []).append(EPSILON)
        if len(graph) == _MAX_POSITIONS:
            raise TooManyTurns
        graph[place] = {target: either(texts) for target, texts in edges.items()}
        waiting.extend(graph[place])
    return graph


def _blocks(alphabet: ContextAlphabet, body: Table) -> list[int]:
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
    composer: Composer, place: _LoopPosition, cell: Cell, term: Grammar, blocks: list[int]
) -> Iterator[tuple[_LoopPosition, Grammar]]:
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
                yield _LoopPosition(block & CHARACTERS, required, promised), part


def _empty_turn(place: _LoopPosition, cell: Cell) -> Iterator[_LoopPosition]:
    left, right = cell
    required = place.required
    if place.ending == _NOTHING_YET:
        required &= left
    elif place.ending & left == 0:
        return
    if required and place.promised & right:
        yield _LoopPosition(place.ending, required, place.promised & right)


_Path = tuple[_LoopPosition, ...]


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


def _stays(path: _Path, graph: _Graph) -> list[_LoopPosition]:
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
        table = table_union(_eliminated(composer, _graph(composer, body, counts_empty_turns=False)))
    else:
        table = EMPTY_TABLE
        for _ in range(maximum - minimum):
            table = table_union([*EMPTY_TABLE.items(), *composer.composed(body, table).items()])
    for _ in range(minimum):
        table = composer.composed(body, table)
    return table


def _eliminated(composer: Composer, graph: _Graph) -> Iterator[tuple[Cell, Grammar]]:
    """All texts of all ways through ``graph``, by eliminating its places one after the other (Kleene)."""
    yield (_START.required, _START.promised), EPSILON
    edges: dict[_LoopPosition, dict[_LoopPosition | Cell, Grammar]] = {}
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
        if not isinstance(target, _LoopPosition):
            yield target, text


ByLength = dict[int, Grammar]
"""Length in characters -> the texts of a term that have it."""

_MAX_LENGTHS: Final = 32


@dataclass(frozen=True, slots=True)
class TemperedShape:
    """What one turn of such a loop does: the look-aheads, then the character."""

    looks: tuple[Lookahead | Boundary, ...]
    character: Grammar


def tempered_shape(loop: Loop) -> TemperedShape | None:
    """The shape of ``loop``, or ``None`` if it has another."""
    items: tuple[Node, ...] = loop.item.items if isinstance(loop.item, Concatenation) else (loop.item,)
    *looks, character = items
    if not isinstance(character, Grammar) or set(_by_length(character) or ()) != {1}:
        return None
    found = tuple(look for look in looks if isinstance(look, Lookahead | Boundary))
    return TemperedShape(found, character) if len(found) == len(looks) else None


def _by_length(root: Grammar) -> ByLength | None:
    """``root`` split by the length of its texts in characters; ``None`` if they have many lengths or unclear ones."""

    def combine(term: Grammar, parts: list[ByLength | None]) -> ByLength | None:
        split = _split(term, [part for part in parts if part is not None]) if None not in parts else None
        return None if split is None or len(split) > _MAX_LENGTHS else split

    return fold(root, combine)


def tempered_language(character: Grammar, seen: list[tuple[Grammar, bool]], tail: Grammar) -> Grammar | None:
    """The texts of the loop followed by ``tail``, or ``None`` if they are not of a known kind.

    Args:
        character: what a turn takes.
        seen: what each look-ahead wants to see up to the end of the text, and whether it is negative.
        tail: what follows the loop, up to the end of the text.
    """
    if seen == [(tail, True)]:
        # The loop runs up to what must not be seen before it ends: the first such place will do for any.
        return then(Repeat(character, 0, None), tail)
    follows = _by_length(tail)
    if follows is None:
        return None
    languages: list[Grammar] = []
    for length, text in follows.items():
        longer = Repeat(ANY_CHAR, length + 1, None)
        language = then(Repeat(character, 0, None), text)
        for ahead, negative in seen:
            bad = both(longer, ahead if negative else Complement(ahead))
            language = both(language, Complement(then(ANY_TEXT, bad)))
        languages.append(language)
    return either(languages)


def _split(term: Grammar, parts: list[ByLength]) -> ByLength | None:
    match term:
        case Literal(data=data):
            return {len(data.decode()): term}
        case CharClass():
            return {1: term}
        case Sequence():
            return _product(parts)
        case Choice():
            return _gathered([pair for part in parts for pair in part.items()])
        case Capture(name=name):
            return {length: Capture(name, text) for length, text in parts[0].items()}
        case Repeat(item=item, min=minimum, max=int(maximum)) if len(parts[0]) == 1:
            if maximum - minimum < _MAX_LENGTHS:
                [length] = parts[0]
                counts = range(minimum, maximum + 1)
                return _gathered([(count * length, Repeat(item, count, count)) for count in counts])
    return None


def _product(parts: list[ByLength]) -> ByLength | None:
    done: ByLength = {0: EPSILON}
    for part in parts:
        pairs = [(one + other, then(left, right)) for one, left in done.items() for other, right in part.items()]
        done = _gathered(pairs)
        if len(done) > _MAX_LENGTHS:
            return None
    return done


def _gathered(pairs: list[tuple[int, Grammar]]) -> ByLength:
    gathered: dict[int, list[Grammar]] = {}
    for length, term in pairs:
        gathered.setdefault(length, []).append(term)
    return {length: either(terms) for length, terms in gathered.items()}
