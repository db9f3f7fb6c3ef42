"""Which lexemes may come next after each sequence of lexemes: an automaton over lexemes, for rules with lazy ones.

The rules become a network: for each occurrence of a lexeme an edge, for each use of a rule a call.  A state of the
automaton is the set of configurations (a node, and the calls around it) that a sequence of lexemes leads to.  Recursive
rules share the nodes after their calls: they are a regular language if each recursion is at the end (or each at the
start) of its rule, and for these the automaton is exact.  For other recursions it has configurations that no sequence
leads to; these are marked as possible, so that nothing is concluded from them.

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

__all__ = ["Automaton", "Lexeme", "LexemeKind", "Skip", "automaton_of"]

_STEPS_A_CONFIGURATION: Final = 2
_MAX_ROUNDS: Final = 8
"""Rounds of a counted repetition that are distinguished."""


@final
class Lexeme(Grammar):
    """A piece of text that a lexer reads as one.

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
class LexemeKind:
    """Lexemes with the same texts.

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
_Configuration: TypeAlias = tuple[int, tuple[_Frame, ...]]


class Automaton(NamedTuple):
    """A deterministic automaton over lexemes; state 0 is the start.

    Attributes:
        kinds: those of all lexemes.
        numbers: the number of a kind by the digest of its occurrence.
        steps: for each state, the next state by kind.
        certain: for each state, the kinds that surely may come next: of some text with these lexemes before.
    """

    kinds: list[LexemeKind]
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

    Complexity: linear in its configurations; there may be exponentially many in the size of the rules.
    """
    network = _Network(rules, subject)
    network.build(body)
    return network.determinised()


@dataclass(slots=True, eq=False)
class _Network:
    rules: Mapping[str, Grammar]
    subject: str
    kinds: list[LexemeKind] = field(default_factory=list)
    numbers_of_kinds: dict[tuple[object, ...], int] = field(default_factory=dict)
    numbers: dict[bytes, int] = field(default_factory=dict)
    moves: list[list[tuple[int, int]]] = field(default_factory=list)
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)  # the rule of each node
    merged_rounds: set[int] = field(default_factory=set)  # nodes that stand for several rounds
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
            spend(_STEPS_A_CONFIGURATION, self.subject)
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
                    self.moves[middle].append((self._kind(term), middle))
                case ir.Reference() | ir.Literal(data=b""):  # a mark: nothing is read
                    self.free[first].append(last)
                case _:
                    number = self._kind(term)
                    kind = self.kinds[number]
                    if kind.match is None or not kind.is_optional:  # the first match of what may be empty is empty
                        self.moves[first].append((number, last))
                    if kind.is_optional:
                        self.free[first].append(last)

    def _repeated(self, name: str, term: ir.Repeat, first: int, last: int) -> list[tuple[Grammar, int, int]]:
        parts: list[tuple[Grammar, int, int]] = []
        low, high = term.min, term.max
        if low > _MAX_ROUNDS or (high is not None and high > _MAX_ROUNDS):
            first_round = self._node(name)
            self.free[first].append(first_round)
            first, low, high = first_round, min(low, 1), None
            self.merged_rounds.add(last)
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

    def _kind(self, term: Grammar) -> int:
        digest = term.digest
        if digest not in self.numbers:
            kind = self._read(term)
            key: tuple[object, ...] = digest, None, False
            if kind.match is not None:
                key = kind.match, kind.text if kind.is_stop else None, True
            elif kind.text is not None:
                key = kind.text, None, False
            if key not in self.numbers_of_kinds:
                self.numbers_of_kinds[key] = len(self.kinds)
                self.kinds.append(kind)
            self.numbers[digest] = self.numbers_of_kinds[key]
        return self.numbers[digest]

    def _read(self, term: Grammar) -> LexemeKind:
        if not isinstance(term, (Lexeme, Skip)):
            return LexemeKind(None)
        text = without_guards(self.rules[term.item.name] if isinstance(term.item, ir.Reference) else term.item)
        match = term.match if isinstance(term, Lexeme) else None
        is_optional = Nullability({})(text if match is None else match)
        if isinstance(term, Skip) or match is None:
            return LexemeKind(text, is_optional=is_optional)
        return LexemeKind(text, match, term.is_stop, is_optional, term.owner)

    def determinised(self) -> Automaton:
        steps: list[dict[int, int]] = []
        certain: list[frozenset[int]] = []
        kernels: dict[frozenset[tuple[_Configuration, bool]], int] = {}
        states: dict[frozenset[tuple[_Configuration, bool]], int] = {}
        waiting: list[frozenset[tuple[_Configuration, bool]]] = []

        def number(configurations: Iterable[tuple[_Configuration, bool]]) -> int:
            kernel = dict[_Configuration, bool]()
            for configuration, is_certain in configurations:
                reached = self._followed(configuration)
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
            targets: dict[int, list[tuple[_Configuration, bool]]] = defaultdict(list)
            sure: set[int] = set()
            for (node, frames), is_certain in state:
                for kind, target in self.moves[node]:
                    targets[kind].append(((target, frames), is_certain))
                    if is_certain:
                        sure.add(kind)
            steps.append({kind: number(targets[kind]) for kind in sorted(targets)})
            certain.append(frozenset(sure))
        return Automaton(self.kinds, self.numbers, steps, certain)

    def _followed(self, configuration: _Configuration) -> _Configuration:
        """Return where the only way from a configuration leads without reading, so that many kernels are the same."""
        while True:
            spend(_STEPS_A_CONFIGURATION, self.subject)
            node, frames = configuration
            name = self.homes[node]
            is_end = node == self.ends[name][1] and bool(frames)
            if self.moves[node] or self.calls[node] or node in self.merged_rounds or len(self.free[node]) + is_end != 1:
                return configuration
            if not is_end:
                configuration = self.free[node][0], frames
            elif self.component[name] in self.recursive:
                return configuration
            else:
                configuration = frames[-1][0], frames[:-1]

    def _closure(self, kernel: Mapping[_Configuration, bool]) -> frozenset[tuple[_Configuration, bool]]:
        """Return the configurations before a lexeme that are reached without reading, and whether each is certain."""
        found: dict[_Configuration, bool] = {}
        agenda = list(kernel.items())
        while agenda:
            configuration, is_certain = agenda.pop()
            if configuration in found and (found[configuration] or not is_certain):
                continue
            found[configuration] = is_certain
            spend(_STEPS_A_CONFIGURATION, self.subject)
            node, frames = configuration
            is_certain = is_certain and node not in self.merged_rounds
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
        return frozenset(
            (configuration, is_certain) for configuration, is_certain in found.items() if self.moves[configuration[0]]
        )
