"""Strings that rules read in two ways, terminals that share strings, and terminals that match the empty string."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Final

from structgen.engine.analysis.byte_graph import byte_graphs
from structgen.engine.analysis.counting import DerivationCounter, LengthCounts
from structgen.engine.analysis.edge_list import Transitions, deterministic_transitions, network_transitions
from structgen.engine.lint.subject import Finding, Severity, Subject
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.analysis import free_references
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Literal, postorder

if TYPE_CHECKING:
    from structgen.engine.analysis.byte_graph import ByteGraph

__all__ = ["ambiguous_texts", "colliding_terminals", "nullable_terminals"]

_NETWORK_LIMITS: Final = Limits(regular_states=5_000, steps=4_000_000)
_MAX_STATES: Final = 3_000
_MAX_NODES: Final = 3_000
_EXTRA_LENGTHS: Final = (3, 6, 9, 12, 16, 20)
"""How much longer than the shortest member texts are that are looked at, in turn, as long as there are few nodes."""
_MAX_SAMPLES: Final = 2_000


def ambiguous_texts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding with a shortest text that rules divide in two ways, or how far there is none.

    The number of runs of each length in the network of the rules is compared with that of members, both exactly; the
    first length where they differ has such a text.  What stands inside one rule and no call divides is not told apart,
    and neither are ways to leave out what may be empty.  Of bytes that no rule tells apart one is looked at.

    Complexity: bounded: 3,000 states and nodes, texts of up to 20 bytes more than the shortest member.
    """
    try:
        (graph,) = byte_graphs(subject.grammar, limits=_NETWORK_LIMITS)
    except (GrammarError, LimitExceeded):
        return
    ways = {graph.likely(index)[0]: 1 for index in range(len(graph.blocks))}
    network = network_transitions(graph.constraint, ways, _MAX_STATES)
    if network is None or not any(network.calls):
        return
    checked = -1
    for further in _EXTRA_LENGTHS:
        most = graph.start.distance + further
        try:
            members = LengthCounts(deterministic_transitions(graph, most, ways, _MAX_NODES), most)
        except LimitExceeded:
            break
        runs = LengthCounts(network, most)
        for length in range(checked + 1, most + 1):
            if runs.total(length) != members.total(length):
                yield _ambiguous(graph, network, runs, length)
                return
        checked = most
    if checked >= 0:
        yield Finding(
            "ambiguity", Severity.INFORMATION, "", f"no text of up to {checked} bytes is read in more than one way"
        )


def _ambiguous(graph: ByteGraph, network: Transitions, runs: LengthCounts, length: int) -> Finding:
    chance = random.Random(length)
    counter = DerivationCounter(network)
    example = f"a text of {length} bytes"
    for _ in range(_MAX_SAMPLES):
        text = runs.draw(length, chance)
        ways = counter.count(text)
        if ways > 1:
            written = b"".join(
                bytes([symbol]) if symbol >= 0 else graph.special[-1 - symbol].encode() for symbol in text
            )
            example = f"{written.decode('utf-8', 'backslashreplace')!r}, in {ways:,} ways"
            break
    return Finding(
        "ambiguity",
        Severity.INFORMATION,
        "",
        f"the rules read some texts in more than one way; a shortest is {example}",
        "this changes no mask; it matters where a parser of yours makes one tree of the text",
    )


_MAX_TERMINALS: Final = 200
_MAX_PAIRS: Final = 100_000
_MAX_PAIRS_OF_TWO: Final = 2_000
"""Pairs of states that are looked at, for all terminals and for two of them."""
_TERMINAL_LIMITS: Final = Limits(regular_states=5_000, steps=2_000_000)


def nullable_terminals(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that matches the empty text.

    Complexity: linear.
    """
    nullable = subject.nullability.rules
    for name in subject.rules:
        if name in subject.terminals and name in nullable:
            yield Finding(
                "empty terminal match",
                Severity.WARNING,
                subject.place(name),
                f"terminal {name!r} matches the empty text, so that it may be left out wherever it stands",
                "let it match at least one character, and write ? after it where it may be missing",
            )


def colliding_terminals(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that shares texts with others, or with words that rules spell, with an example.

    Complexity: bounded: 200 terminals, 100,000 pairs of states.
    """
    chosen = _terminals(subject)
    if not chosen:
        return
    names = list(chosen)
    try:
        graphs = byte_graphs(*chosen.values(), limits=_TERMINAL_LIMITS)
    except (GrammarError, LimitExceeded):
        return
    shared: dict[str, list[tuple[str, bytes]]] = {name: [] for name in names}
    words = _words(subject)
    for name, graph in zip(names, graphs, strict=True):
        shared[name] += [(repr(word.decode("utf-8", "replace")), word) for word in words if _has(graph, word)]
    left = _MAX_PAIRS
    for (name, graph), (other, other_graph) in combinations(zip(names, graphs, strict=True), 2):
        text, used = _common(graph, other_graph, min(left, _MAX_PAIRS_OF_TWO))
        left -= used
        if text is not None:
            shared[name].append((f"terminal {other!r}", text))
        if left <= 0:
            break
    for name, found in shared.items():
        if found:
            others = ", ".join(other for other, _ in found[:4]) + (f" and {len(found) - 4} more" if found[4:] else "")
            example = found[0][1].decode("utf-8", "backslashreplace")
            yield Finding(
                "colliding terminals",
                Severity.INFORMATION,
                subject.place(name),
                f"terminal {name!r} shares texts with {others}, for instance {example!r}",
                "where both may stand such a text is read in two ways; exclude it from one of them if that matters",
            )


def _terminals(subject: Subject) -> dict[str, Grammar]:
    """The terminals that are terms of their own, as many as are compared."""
    found = {}
    for name, term in subject.rules.items():
        if name in subject.terminals and not free_references(term):
            found[name] = term
            if len(found) >= _MAX_TERMINALS:
                break
    return found


def _words(subject: Subject) -> list[bytes]:
    """What rules spell that begins with a letter: keywords."""
    words: dict[bytes, None] = {}
    for name, term in subject.rules.items():
        if name not in subject.terminals:
            for node in postorder(term):
                if isinstance(node, Literal) and node.data[:1].isalpha():
                    words[node.data] = None
    return list(words)[: _MAX_TERMINALS * 5]


def _has(graph: ByteGraph, word: bytes) -> bool:
    matcher = graph.constraint.matcher()
    return matcher.accept_bytes(word) == len(word) and matcher.is_accepting


def _common(one: ByteGraph, other: ByteGraph, most: int) -> tuple[bytes | None, int]:
    """A shortest text that both have, that is not empty, and how many pairs were looked at; None if there is none."""
    seen = {(one.start.number, other.start.number)}
    agenda = deque([(one.start, other.start, b"")])
    looked_at = 0
    while agenda and looked_at < most:
        mine, theirs, text = agenda.popleft()
        looked_at += 1
        if text and mine.is_accepting and theirs.is_accepting:
            return text, looked_at
        those = other.successors(theirs)
        for label, after in one.successors(mine).items():
            reference = those.get(label)
            if label >= 0 and reference is not None and (after.number, reference.number) not in seen:
                seen.add((after.number, reference.number))
                agenda.append((after, reference, text + one.likely(label)))
    return None, looked_at
