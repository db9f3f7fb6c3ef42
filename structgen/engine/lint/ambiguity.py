"""A shortest text that the rules read in two ways."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from structgen.engine.byte_graph import byte_graphs
from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.subject import Subject
from structgen.engine.members.counts import Counts
from structgen.engine.members.runs import Runs
from structgen.engine.members.transitions import Transitions, deterministic_transitions, network_transitions
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import Limits

if TYPE_CHECKING:
    from structgen.engine.byte_graph import ByteGraph

__all__ = ["ambiguous_texts"]

_SMALL: Final = Limits(regular_states=5_000, steps=4_000_000)
_MOST_STATES: Final = 3_000
_MOST_NODES: Final = 3_000
_FURTHER: Final = (3, 6, 9, 12, 16, 20)
"""How much longer than the shortest member texts are that are looked at, in turn, as long as there are few nodes."""
_MOST_DRAWS: Final = 2_000


def ambiguous_texts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding with a shortest text that rules divide in two ways, or how far there is none.

    The number of runs of each length in the network of the rules is compared with that of members, both exactly; the
    first length where they differ has such a text.  What stands inside one rule and no call divides is not told apart,
    and neither are ways to leave out what may be empty.  Of bytes that no rule tells apart one is looked at.

    Complexity: bounded: 3,000 states and nodes, texts of up to 20 bytes more than the shortest member.
    """
    try:
        (graph,) = byte_graphs(subject.grammar, limits=_SMALL)
    except (GrammarError, LimitExceeded):
        return
    ways = {graph.likely(index)[0]: 1 for index in range(len(graph.blocks))}
    network = network_transitions(graph.constraint, ways, _MOST_STATES)
    if network is None or not any(network.calls):
        return
    checked = -1
    for further in _FURTHER:
        most = graph.start.distance + further
        try:
            members = Counts(deterministic_transitions(graph, most, ways, _MOST_NODES), most)
        except LimitExceeded:
            break
        runs = Counts(network, most)
        for length in range(checked + 1, most + 1):
            if runs.total(length) != members.total(length):
                yield _found(graph, network, runs, length)
                return
        checked = most
    if checked >= 0:
        yield Finding(
            "ambiguity", Severity.INFORMATION, "", f"no text of up to {checked} bytes is read in more than one way"
        )


def _found(graph: ByteGraph, network: Transitions, runs: Counts, length: int) -> Finding:
    chance = random.Random(length)
    counter = Runs(network)
    example = f"a text of {length} bytes"
    for _ in range(_MOST_DRAWS):
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
