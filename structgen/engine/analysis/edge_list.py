"""Automata and networks as lists of edges, for counting and sampling derivations."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, TypeAlias, final

from structgen_kernels import _native

from structgen.engine.constraint import compile
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import Choice, Grammar, Reference, Repeat, Rules, Sequence, postorder
from structgen.grammar.scopes import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.analysis.byte_graph import ByteGraph
    from structgen.engine.constraint import Constraint
    from structgen.grammar.limits import Limits

__all__ = [
    "Edge",
    "Transitions",
    "deterministic_transitions",
    "network_transitions",
    "transitions_of",
    "with_shared_rules",
]

_TRANSPARENT: Final = (Sequence, Choice, Repeat, Rules)
"""Terms whose children may become rules; children of operators on regular languages may not."""


def with_shared_rules(grammar: Grammar, limits: Limits) -> Grammar:
    """Return an equal grammar in which a term that is used several times is a rule.

    A terminal that uses others many times may have an automaton that is too large, but a small network of calls.  Only
    terms that are one object in ``grammar`` are shared.

    Raises:
        LimitExceeded, GrammarError: as ``resolve``.

    Complexity: linear in the flat grammar.
    """
    flat = resolve(grammar, limits)
    rules = dict(flat.rules)
    terms = [*rules.values(), flat.body]
    tops = {id(term) for term in terms}
    uses: Counter[int] = Counter()
    inside: set[int] = set()
    for node in _visible(terms):
        inside.add(id(node))
        if isinstance(node, _TRANSPARENT):
            uses.update(id(child) for child in node.children)
    made: dict[int, Grammar] = {}
    shared: dict[str, Grammar] = {}
    names = (name for number in count() if (name := f"${number}") not in rules)
    for term in terms:
        for node in postorder(term, known=lambda node: id(node) in made):
            new = node
            if id(node) in inside and isinstance(node, _TRANSPARENT):
                new = with_children(node, [made[id(child)] for child in node.children])
                if uses[id(node)] > 1 and id(node) not in tops and not isinstance(node, Rules):
                    name = next(names)
                    shared[name] = new
                    new = Reference(name)
            made[id(node)] = new
    if not shared:
        return flat
    return Rules({name: made[id(term)] for name, term in rules.items()} | shared, made[id(flat.body)])


def _visible(terms: list[Grammar]) -> Iterator[Grammar]:
    """Yield the terms that are only inside sequences, choices, repetitions and rules."""
    seen: set[int] = set()
    agenda = list(terms)
    while agenda:
        node = agenda.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            if isinstance(node, _TRANSPARENT):
                agenda += node.children


_FEW_STATES: Final = 500
"""States to build to find out whether a language with recursion is regular; states of ambiguous languages are slow."""
_SMALL_NETWORK: Final = 5_000
"""States of a network, beyond which sharing terms is tried first."""
_LARGE_NETWORK: Final = 40_000
"""Limit on the states of any network; each takes a kilobyte while it is read."""

_RawNetwork: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]"
"""Targets by state and byte, final states, calls and special tokens, as the engine unfolds them."""
Edge: TypeAlias = "tuple[int, tuple[int, ...], int]"
"""The target state, the symbols, and the number of ways in which they are read."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """A recursive transition network over bytes; state 0 is the start.

    A symbol is a byte, or -1 - id for a special token.  A *run* reads a string by edges and calls; a called rule reads
    at least one symbol.

    Attributes:
        reads: the edges of each state.
        calls: for each state the starts of the rules that it calls, with the state after the return.
        final: whether a rule may end in a state.
        ways: the number of ways in which a byte is read; 1 for a special token.
        is_unambiguous: whether every string is known to have at most one run.
    """

    reads: list[list[Edge]]
    calls: list[list[tuple[int, int]]]
    final: list[bool]
    ways: Mapping[int, int]
    is_unambiguous: bool


def transitions_of(constraint: Constraint, ways: Mapping[int, int]) -> Transitions:
    """Return the edges of a constraint that read the bytes in ``ways``.

    Raises:
        LimitExceeded: there are too many states.
    """
    made = _native.unfold(constraint.native, _FEW_STATES)
    if made is not None:
        import numpy as np

        next_, final_, specials = made
        none = np.zeros((0, 3), dtype=np.int32)
        return _readable((next_, final_, none, specials), ways)
    network = _native.unfold_calls(constraint.native, _SMALL_NETWORK)
    if network is None and not constraint.native.has_scope:
        network = _shared_network(constraint)
    if network is None:
        network = _native.unfold_calls(constraint.native, _LARGE_NETWORK)
    if network is None:
        raise LimitExceeded(
            "strings of a grammar",
            limit="states of a network",
            maximum=_LARGE_NETWORK,
            remedy="bound repetitions, or allow fewer characters",
        )
    return _readable(network, ways)


def network_transitions(constraint: Constraint, ways: Mapping[int, int], max_states: int) -> Transitions | None:
    """Return the edges of the rules of a constraint, with their calls; None if there are too many states."""
    network = _native.unfold_calls(constraint.native, max_states)
    return None if network is None else _readable(network, ways)


def _shared_network(constraint: Constraint) -> _RawNetwork | None:
    try:
        grammar = with_shared_rules(constraint.grammar, constraint.limits)
        shared = compile(grammar, constraint.vocabulary, limits=constraint.limits)
    except (LimitExceeded, GrammarError):
        return None
    return _native.unfold_calls(shared.native, _LARGE_NETWORK)


def _readable(network: _RawNetwork, ways: Mapping[int, int]) -> Transitions:
    """Return the network without empty calls: a rule that matches the empty string can also be skipped.

    Complexity: linear in the edges, and in the edges of states that empty calls lead to.
    """
    import numpy as np  # slow to import, and the lints of a JSON Schema do not need it

    from structgen.engine.call_graph import distinct_columns, is_deterministic

    next_, final_, called, specials = network
    states = len(next_)
    allowed = sorted(ways)
    calls: list[list[tuple[int, int]]] = [[] for _ in range(states)]
    for state, start, after in called.tolist():
        calls[state].append((start, after))
    columns, kind_of = distinct_columns(next_[:, allowed])
    alike: list[list[int]] = [[] for _ in range(columns.shape[1])]
    for byte, kind in zip(allowed, kind_of.tolist(), strict=True):
        alike[kind].append(byte)
    edges: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(states)]
    tails, kinds = np.nonzero(columns >= 0)
    for state, kind, target in zip(tails.tolist(), kinds.tolist(), columns[tails, kinds].tolist(), strict=True):
        edges[state][target] += alike[kind]
    for state, token, target in specials.tolist():
        edges[state][target].append(-1 - token)
    nullable = _nullable(final_, calls)
    reads: list[list[Edge]] = []
    joined: list[list[tuple[int, int]]] = []
    for state in range(states):
        closure, agenda = [state], [state]
        while agenda:
            for start, after in calls[agenda.pop()]:
                if nullable[start] and after not in closure:
                    closure.append(after)
                    agenda.append(after)
        if len(closure) == 1:
            read = edges[state]
            joined.append(sorted(set(calls[state])))
        else:
            read = defaultdict(list)
            for one in closure:
                for target, symbols in edges[one].items():
                    read[target] += symbols
            joined.append(sorted({edge for one in closure for edge in calls[one]}))
        reads.append([_edge(target, set(symbols), ways) for target, symbols in read.items()])
    return Transitions(reads, joined, nullable, ways, is_deterministic(reads, joined, nullable))


def _edge(target: int, symbols: set[int], ways: Mapping[int, int]) -> Edge:
    ordered = tuple(sorted(symbols))
    return target, ordered, sum(ways.get(symbol, 1) for symbol in ordered)


def _nullable(final_: NDArray[np.uint8], calls: list[list[tuple[int, int]]]) -> list[bool]:
    """Return whether a rule may end from each state without reading anything."""
    nullable = [bool(one) for one in final_.tolist()]
    waiting: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for state, edges in enumerate(calls):
        for start, after in edges:
            waiting[start].append((state, start, after))
            waiting[after].append((state, start, after))
    agenda = [state for state, one in enumerate(nullable) if one]
    while agenda:
        for state, start, after in waiting[agenda.pop()]:
            if not nullable[state] and nullable[start] and nullable[after]:
                nullable[state] = True
                agenda.append(state)
    return nullable


def deterministic_transitions(graph: ByteGraph, max_bytes: int, ways: Mapping[int, int], max_nodes: int) -> Transitions:
    """Return the edges of a graph on strings of up to ``max_bytes``.

    Raises:
        LimitExceeded: there are more than ``max_nodes`` nodes.
    """
    number = {graph.start.number: 0}
    agenda = deque([(graph.start, 0)])
    reads: list[list[Edge]] = []
    final: list[bool] = []
    blocks = [{byte for byte in block if byte in ways} for block in graph.blocks]
    while agenda:  # breadth first: a node is met by its shortest prefix
        node, read = agenda.popleft()
        found: dict[int, set[int]] = {}
        for label, target in graph.successors(node).items():
            symbols = blocks[label] if label >= 0 else {label}
            if not symbols or read + 1 + target.distance > max_bytes:
                continue
            if target.number not in number:
                number[target.number] = len(number)
                agenda.append((target, read + 1))
                if len(number) > max_nodes:
                    raise LimitExceeded(
                        "strings of a grammar",
                        limit="max_nodes",
                        maximum=max_nodes,
                        evidence=f"strings of up to {max_bytes} bytes have more different states",
                        remedy="request shorter strings",
                    )
            reached = number[target.number]
            found[reached] = found.get(reached, set()) | symbols
        reads.append([_edge(target, symbols, ways) for target, symbols in found.items()])
        final.append(node.is_accepting)
    return Transitions(reads, [[] for _ in reads], final, ways, is_unambiguous=True)
