"""Which lexemes may come next after each sequence of lexemes: an automaton over lexemes, for rules with lazy ones.

The rules become a network: for each occurrence of a lexeme an edge, for each use of a rule a call.  A state of the
automaton is the set of places that a sequence of lexemes leads to, with the calls around each.  Recursive rules share
the places after their calls: they are a regular language if each recursion is at the end (or each at the start) of its
rule, and for these the automaton is exact.  For other recursions it has places that no sequence leads to; these are
marked as possible, so that nothing is concluded from them.

Source: M. Mohri, M.-J. Nederhof, "Regular approximation of context-free grammars through transformation" (2001).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, final

from structgen.frontends.lark.lazy import without_guards
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import Nullability, strongly_connected
from structgen.grammar.limits import spend
from structgen.grammar.nodes import Grammar

__all__ = ["Automaton", "Label", "Lexeme", "Skip", "automaton_of"]

_STEPS_A_PLACE: Final = 2
_MAX_ROUNDS: Final = 8
"""Rounds of a counted repetition that are told apart."""


@final
class Lexeme(Grammar):
    """What a lexer reads as one piece.

    Attributes:
        item: its texts.
        match: for a lazy lexeme, the texts that end it: the lexer takes the first that it finds. None for others.
        is_stop: whether the texts are those of ``match`` without a stop at the end.
        owner: the rule of a lazy lexeme.
    """

    __slots__ = ("is_stop", "item", "match", "owner")
    _fields = ("item", "match", "is_stop", "owner")
    item: Grammar
    match: Grammar | None
    is_stop: bool
    owner: str

    def __init__(self, item: Grammar, match: Grammar | None = None, is_stop: bool = False, owner: str = "") -> None:  # noqa: FBT001, FBT002  # as _fields has it
        for name, value in (("item", item), ("match", match), ("is_stop", is_stop), ("owner", owner)):
            object.__setattr__(self, name, value)

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The texts, then those of the match."""
        return (self.item,) if self.match is None else (self.item, self.match)

    def _own(self) -> object:
        return self.is_stop


@final
class Skip(Grammar):
    """Ignored text, which may come any number of times or not at all."""

    __slots__ = ("item",)
    _fields = ("item",)
    item: Grammar

    def __init__(self, item: Grammar) -> None:
        object.__setattr__(self, "item", item)

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The ignored text."""
        return (self.item,)


@dataclass(frozen=True, slots=True)
class Label:
    """A kind of lexeme: those with the same texts.

    Attributes:
        text: its texts; None for what is no lexeme, as a special token or the value of a schema.
        match: see ``Lexeme``.
        is_stop: see ``Lexeme``.
        is_optional: whether it may be empty.
        owner: the first rule that has it, if it is lazy.
    """

    text: Grammar | None
    match: Grammar | None = None
    is_stop: bool = False
    is_optional: bool = False
    owner: str = ""


_Frame: TypeAlias = tuple[int, str]
"""Where a call returns to, and the rule that was called."""
_Place: TypeAlias = tuple[int, tuple[_Frame, ...]]


class Automaton(NamedTuple):
    """A deterministic automaton over lexemes; state 0 is the start.

    Attributes:
        labels: the kinds of lexemes.
        numbers: the number of a label by the digest of its occurrence.
        steps: for each state, the next state by label.
        certain: for each state, the labels that surely may come next: of some text with these lexemes before.
    """

    labels: list[Label]
    numbers: dict[bytes, int]
    steps: list[dict[int, int]]
    certain: list[frozenset[int]]


def automaton_of(rules: Mapping[str, Grammar], body: Grammar, subject: str) -> Automaton:
    """Return the automaton of rules whose lexemes are marked.

    Args:
        rules: the rules, and the terminals, by name.
        body: the start.
        subject: the grammar, for errors.

    Raises:
        LimitExceeded: it takes more than ``Limits.steps``.

    Complexity: linear in its places; there may be exponentially many in the size of the rules.
    """
    network = _Network(rules, subject)
    network.build(body)
    return network.determinised()


@dataclass(slots=True, eq=False)
class _Network:
    rules: Mapping[str, Grammar]
    subject: str
    labels: list[Label] = field(default_factory=list)
    kinds: dict[tuple[object, ...], int] = field(default_factory=dict)
    numbers: dict[bytes, int] = field(default_factory=dict)
    moves: list[list[tuple[int, int]]] = field(default_factory=list)
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)  # the rule of each node
    loose: set[int] = field(default_factory=set)  # nodes that stand for several rounds
    ends: dict[str, tuple[int, int]] = field(default_factory=dict)
    component: dict[str, int] = field(default_factory=dict)
    inexact: set[int] = field(default_factory=set)
    returns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # within a component
    recursive: set[int] = field(default_factory=set)

    def build(self, body: Grammar) -> None:
        waiting = [("", body)]
        graph: dict[str, list[str]] = {}
        while waiting:
            name, term = waiting.pop()
            if name in self.ends:
                continue
            self.ends[name] = self._node(name), self._node(name)
            self._add(name, term)
            start = self.ends[name][0]
            graph[name] = [called for node in range(start, len(self.calls)) for called, _ in self.calls[node]]
            waiting += [(called, self.rules[called]) for called in graph[name]]
        for number, group in enumerate(strongly_connected(graph)):
            self.component |= dict.fromkeys(group, number)
            if len(group) > 1 or group[0] in graph[group[0]]:
                self.recursive.add(number)
                if not self._is_linear(set(group)):
                    self.inexact.add(number)
        for node, name in enumerate(self.homes):
            for called, after in self.calls[node]:
                if self._is_inside(name, called):
                    self.returns[called].append(after)

    def _is_inside(self, name: str, called: str) -> bool:
        return self.component[name] == self.component[called] and self.component[name] in self.recursive

    def _is_linear(self, group: set[str]) -> bool:
        """Return whether all recursion of some rules is at their ends, or all at their starts."""
        starts, ends = True, True
        for name in group:
            first, last = self.ends[name]
            moved = self._after_something(first)
            for node in [node for node, home in enumerate(self.homes) if home == name]:
                for called, after in self.calls[node]:
                    if called in group:
                        starts = starts and node not in moved
                        reached = self._reached([after])
                        ends = ends and last in reached and not any(self.moves[n] or self.calls[n] for n in reached)
        return starts or ends

    def _reached(self, nodes: Iterable[int]) -> set[int]:
        """Return the nodes that are reached without reading or calling."""
        agenda = list(nodes)
        seen = set(agenda)
        while agenda:
            agenda += [node for node in self.free[agenda.pop()] if node not in seen]
            seen.update(agenda)
        return seen

    def _after_something(self, start: int) -> set[int]:
        """Return the nodes of a rule that are reached after reading or calling."""
        before, moved = self._reached([start]), set[int]()
        agenda = list(before)
        while agenda:
            node = agenda.pop()
            further = [target for _, target in self.moves[node]] + [target for _, target in self.calls[node]]
            new = self._reached(further) - moved
            moved |= new
            agenda += new
        return moved

    def _node(self, name: str) -> int:
        self.moves.append([])
        self.calls.append([])
        self.free.append([])
        self.homes.append(name)
        return len(self.homes) - 1

    def _add(self, name: str, root: Grammar) -> None:
        """Add the nodes and edges of a rule."""
        parts = [(root, *self.ends[name])]
        while parts:
            spend(_STEPS_A_PLACE, self.subject)
            term, first, last = parts.pop()
            match term:
                case ir.Sequence(items=items):
                    nodes = [first, *(self._node(name) for _ in items[1:]), last]
                    parts += [(item, nodes[i], nodes[i + 1]) for i, item in enumerate(items)]
                    if not items:
                        self.free[first].append(last)
                case ir.Choice(items=items):
                    for item in items:
                        start, end = self._node(name), self._node(name)
                        self.free[first].append(start)
                        self.free[end].append(last)
                        parts.append((item, start, end))
                case ir.Repeat():
                    parts += self._repeated(name, term, first, last)
                case ir.Capture(item=item) | ir.Budget(item=item) | ir.Tempered(item=item):
                    parts.append((item, first, last))
                case ir.Reference() if term.name in self.rules:
                    self.calls[first].append((term.name, last))
                case Skip():
                    middle = self._node(name)
                    self.free[first].append(middle)
                    self.free[middle].append(last)
                    self.moves[middle].append((self._label(term), middle))
                case ir.Reference() | ir.Literal(data=b""):  # a mark: nothing is read
                    self.free[first].append(last)
                case _:
                    number = self._label(term)
                    label = self.labels[number]
                    if label.match is None or not label.is_optional:  # the first match of what may be empty is empty
                        self.moves[first].append((number, last))
                    if label.is_optional:
                        self.free[first].append(last)

    def _repeated(self, name: str, term: ir.Repeat, first: int, last: int) -> list[tuple[Grammar, int, int]]:
        parts: list[tuple[Grammar, int, int]] = []
        low, high = term.min, term.max
        if low > _MAX_ROUNDS or (high is not None and high > _MAX_ROUNDS):
            first_round = self._node(name)
            self.free[first].append(first_round)
            first, low, high = first_round, min(low, 1), None
            self.loose.add(last)
        for _ in range(low if high is None else high):
            after = self._node(name)
            parts.append((term.item, first, after))
            if high is not None and len(parts) > low:
                self.free[first].append(last)
            first = after
        if high is None:
            loop, after = self._node(name), self._node(name)
            self.free[first].append(loop)
            parts.append((term.item, loop, after))
            self.free[after].append(loop)
            self.free[loop].append(last)
        else:
            self.free[first].append(last)
        return parts

    def _label(self, term: Grammar) -> int:
        digest = term.digest
        if digest not in self.numbers:
            label = self._read(term)
            key: tuple[object, ...] = digest, None, False
            if label.match is not None:
                key = label.match, label.text if label.is_stop else None, True
            elif label.text is not None:
                key = label.text, None, False
            if key not in self.kinds:
                self.kinds[key] = len(self.labels)
                self.labels.append(label)
            self.numbers[digest] = self.kinds[key]
        return self.numbers[digest]

    def _read(self, term: Grammar) -> Label:
        if not isinstance(term, (Lexeme, Skip)):
            return Label(None)
        text = without_guards(self.rules[term.item.name] if isinstance(term.item, ir.Reference) else term.item)
        match = term.match if isinstance(term, Lexeme) else None
        is_optional = Nullability({})(text if match is None else match)
        if isinstance(term, Skip) or match is None:
            return Label(text, is_optional=is_optional)
        return Label(text, match, term.is_stop, is_optional, term.owner)

    def determinised(self) -> Automaton:
        steps: list[dict[int, int]] = []
        certain: list[frozenset[int]] = []
        kernels: dict[frozenset[tuple[_Place, bool]], int] = {}
        states: dict[frozenset[tuple[_Place, bool]], int] = {}
        waiting: list[frozenset[tuple[_Place, bool]]] = []

        def number(places: Iterable[tuple[_Place, bool]]) -> int:
            kernel = dict[_Place, bool]()
            for place, is_certain in places:
                reached = self._followed(place)
                kernel[reached] = kernel.get(reached, False) or is_certain
            if len(kernel) == 1:  # a text with these lexemes leads here, or to nothing
                kernel = dict.fromkeys(kernel, True)
            key = frozenset(kernel.items())
            if key not in kernels:
                state = self._closure(kernel)
                if state not in states:
                    states[state] = len(states)
                    waiting.append(state)
                kernels[key] = states[state]
            return kernels[key]

        number([((self.ends[""][0], ()), True)])
        for state in waiting:  # which grows
            targets: dict[int, list[tuple[_Place, bool]]] = defaultdict(list)
            sure: set[int] = set()
            for (node, frames), is_certain in state:
                for label, target in self.moves[node]:
                    targets[label].append(((target, frames), is_certain))
                    if is_certain:
                        sure.add(label)
            steps.append({label: number(targets[label]) for label in sorted(targets)})
            certain.append(frozenset(sure))
        return Automaton(self.labels, self.numbers, steps, certain)

    def _followed(self, place: _Place) -> _Place:
        """Return where the only way from a place leads without reading, so that many kernels are the same."""
        while True:
            spend(_STEPS_A_PLACE, self.subject)
            node, frames = place
            name = self.homes[node]
            is_end = node == self.ends[name][1] and bool(frames)
            if self.moves[node] or self.calls[node] or node in self.loose or len(self.free[node]) + is_end != 1:
                return place
            if not is_end:
                place = self.free[node][0], frames
            elif self.component[name] in self.recursive:
                return place
            else:
                place = frames[-1][0], frames[:-1]

    def _closure(self, kernel: Mapping[_Place, bool]) -> frozenset[tuple[_Place, bool]]:
        """Return the places with a lexeme next that are reached without reading, and whether each is certain."""
        found: dict[_Place, bool] = {}
        agenda = list(kernel.items())
        while agenda:
            place, is_certain = agenda.pop()
            if place in found and (found[place] or not is_certain):
                continue
            found[place] = is_certain
            spend(_STEPS_A_PLACE, self.subject)
            node, frames = place
            is_certain = is_certain and node not in self.loose
            name = self.homes[node]
            agenda += [((target, frames), is_certain) for target in self.free[node]]
            for called, after in self.calls[node]:
                inner = frames if self._is_inside(name, called) else (*frames, (after, called))
                agenda.append(((self.ends[called][0], inner), is_certain))
            if node == self.ends[name][1] and frames:
                is_certain = is_certain and self.component[name] not in self.inexact
                agenda += [((after, frames), is_certain) for after in self.returns[name]]
                if frames[-1][1] == name:
                    agenda.append(((frames[-1][0], frames[:-1]), is_certain))
        return frozenset((place, is_certain) for place, is_certain in found.items() if self.moves[place[0]])
