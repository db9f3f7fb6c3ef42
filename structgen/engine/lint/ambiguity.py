"""Lints about strings with several parses, terminals that share strings or are empty, and parts hidden by free text."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import combinations, islice
from typing import TYPE_CHECKING, Final

from structgen.engine.analysis.byte_graph import byte_graphs
from structgen.engine.analysis.counting import DerivationCounter, LengthCounts
from structgen.engine.analysis.edge_list import Transitions, deterministic_transitions, network_transitions
from structgen.engine.analysis.inclusion import included
from structgen.engine.lint import Finding, Severity, Subject, base_name
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, with_children
from structgen.grammar.analysis import free_references
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.visitor import fold

if TYPE_CHECKING:
    from structgen.engine.analysis.byte_graph import ByteGraph

__all__ = ["ambiguous_texts", "colliding_terminals", "hidden_parts", "nullable_terminals"]

_NETWORK_LIMITS: Final = Limits(regular_states=5_000, steps=4_000_000)
_MAX_STATES: Final = 3_000
_MAX_NODES: Final = 3_000
_EXTRA_LENGTHS: Final = (3, 6, 9, 12, 16, 20)
"""Lengths to check, in turn, beyond the shortest string, while there are few nodes."""
_MAX_SAMPLES: Final = 2_000


def ambiguous_texts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding with a shortest ambiguous string, or the length up to which there is none.

    For each length, the number of runs in the network of the rules is compared with the number of strings, both exact:
    an ambiguous string exists at the first length where they differ.  Ambiguity within one rule's automaton does not
    count, nor do several ways to match the empty string.  One byte stands for all bytes that the rules treat alike.

    Complexity: bounded: 3,000 states and nodes, strings of up to 20 bytes more than the shortest one.
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
        max_length = graph.start.distance + further
        try:
            strings = LengthCounts(deterministic_transitions(graph, max_length, ways, _MAX_NODES), max_length)
        except LimitExceeded:
            break
        runs = LengthCounts(network, max_length)
        for length in range(checked + 1, max_length + 1):
            if runs.total(length) != strings.total(length):
                yield _ambiguous(graph, network, runs, length)
                return
        checked = max_length
    if checked >= 0:
        yield Finding(
            "ambiguity", Severity.INFORMATION, "", f"no string of up to {checked} bytes has more than one parse"
        )


def _ambiguous(graph: ByteGraph, network: Transitions, runs: LengthCounts, length: int) -> Finding:
    rng = random.Random(length)
    counter = DerivationCounter(network)
    example = f"a string of {length} bytes"
    for _ in range(_MAX_SAMPLES):
        text = runs.draw(length, rng)
        ways = counter.count(text)
        if ways > 1:
            written = b"".join(
                bytes([symbol]) if symbol >= 0 else graph.special[-1 - symbol].encode() for symbol in text
            )
            example = f"{written.decode('utf-8', 'backslashreplace')!r}, with {ways:,} parses"
            break
    return Finding(
        "ambiguity",
        Severity.INFORMATION,
        "",
        f"some strings have more than one parse; a shortest one is {example}",
        "masks are not affected; it matters if your own parser builds one tree from the output",
    )


_MAX_TERMINALS: Final = 200
_MAX_PAIRS: Final = 100_000
_MAX_PAIRS_OF_TWO: Final = 2_000
"""Pairs of states that are examined, for all terminals and for two of them."""
_TERMINAL_LIMITS: Final = Limits(regular_states=5_000, steps=2_000_000)


def nullable_terminals(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each terminal that matches the empty string.

    Complexity: linear.
    """
    nullable = subject.nullability.rules
    for name in subject.rules:
        if name in subject.terminals and name in nullable:
            yield Finding(
                "empty terminal match",
                Severity.WARNING,
                subject.location(name),
                f"terminal {name!r} matches the empty string, so it is optional wherever it is used",
                "let it match at least one character, and write ? after it where it is optional",
            )


def colliding_terminals(subject: Subject) -> Iterator[Finding]:
    """Yield a finding, with an example, for each terminal that shares strings with others or with keywords of rules.

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
    for name, partners in shared.items():
        if partners:
            more = f" and {len(partners) - 4} more" if partners[4:] else ""
            others = ", ".join(other for other, _ in partners[:4]) + more
            example = partners[0][1].decode("utf-8", "backslashreplace")
            yield Finding(
                "colliding terminals",
                Severity.INFORMATION,
                subject.location(name),
                f"terminal {name!r} shares strings with {others}, for instance {example!r}",
                "where both are allowed such a string has two parses; exclude it from one of them if that matters",
            )


def _terminals(subject: Subject) -> dict[str, Grammar]:
    """Return the first terminals that refer to nothing else."""
    closed = (
        (name, term) for name, term in subject.rules.items() if name in subject.terminals and not free_references(term)
    )
    return dict(islice(closed, _MAX_TERMINALS))


def _words(subject: Subject) -> list[bytes]:
    """Return the keywords: literals of rules that begin with a letter."""
    words: dict[bytes, None] = {}
    for name, term in subject.rules.items():
        if name not in subject.terminals:
            for node in postorder(term):
                if isinstance(node, ir.Literal) and node.data[:1].isalpha():
                    words[node.data] = None
    return list(words)[: _MAX_TERMINALS * 5]


def _has(graph: ByteGraph, word: bytes) -> bool:
    matcher = graph.constraint.matcher()
    return matcher.accept_bytes(word) == len(word) and matcher.is_accepting


def _common(one: ByteGraph, other: ByteGraph, max_pairs: int) -> tuple[bytes | None, int]:
    """Return a shortest common string that is not empty, None if none was found, and how many pairs were examined."""
    seen = {(one.start.number, other.start.number)}
    agenda = deque([(one.start, other.start, b"")])
    examined = 0
    while agenda and examined < max_pairs:
        state, other_state, text = agenda.popleft()
        examined += 1
        if text and state.is_accepting and other_state.is_accepting:
            return text, examined
        other_successors = other.successors(other_state)
        for label, after in one.successors(state).items():
            partner = other_successors.get(label)
            if label >= 0 and partner is not None and (after.number, partner.number) not in seen:
                seen.add((after.number, partner.number))
                agenda.append((after, partner, text + one.likely(label)))
    return None, examined


_MAX_PARTS: Final = 12
"""Parts that are left out in turn."""
_MAX_HIDDEN_NODES: Final = 3_000
_MAX_HIDDEN_PAIRS: Final = 300
_HIDDEN_LIMITS: Final = Limits(regular_states=5_000, steps=2_000_000)
_MAX_SHOWN: Final = 80


def hidden_parts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each part without which a grammar with free text has the same language.

    Such a part constrains nothing: what it forbids, the adjacent free text allows.  Alternatives and optional parts
    that use rules or are sequences are left out in turn, and the languages are compared.

    Complexity: bounded: 13 comparisons of 300 pairs of states, for a grammar of at most 3,000 nodes.
    """
    terms = [*subject.rules.items(), ("", subject.body)]
    sizes = [sum(1 for _ in postorder(term)) for _, term in terms]
    if sum(sizes) > _MAX_HIDDEN_NODES or not any(_is_free(node) for _, term in terms for node in postorder(term)):
        return
    hidden: set[str] = set()
    tried = 0
    whole = ir.Rules(subject.rules, subject.body)
    has_tokens = any(isinstance(node, (ir.SpecialToken, ir.TokenSet)) for _, term in terms for node in postorder(term))
    larger: list[Grammar] = [whole]
    anything = ir.Repeat(ir.ANY_CHAR, 0, None)
    if not has_tokens and _has_all(whole, anything) is not False:
        larger.insert(0, anything)  # the usual case, and simpler
    for name, part, reduced in _reductions(subject):
        if name in hidden or tried == _MAX_PARTS:
            continue
        tried += 1
        terms_without = subject.rules | ({name: reduced} if name else {})
        without = ir.Rules(terms_without, subject.body if name else reduced)
        if any(_has_all(without, each) for each in larger):
            hidden |= {name} | {node.name for node in postorder(part) if isinstance(node, ir.Reference)}
            shown = str(part)
            yield Finding(
                "hidden part",
                Severity.WARNING,
                subject.location(name),
                f"a part of {f'rule {name!r}' if name else 'the grammar'} constrains nothing, because free text beside "
                f"it has every text of it: {shown if len(shown) <= _MAX_SHOWN else shown[: _MAX_SHOWN - 3] + '...'}",
                "let the free text end before it: by what it excludes, or with [lazy] of llguidance's dialect",
            )


def _has_all(grammar: Grammar, larger: Grammar) -> bool | None:
    try:
        return included(larger, grammar, max_pairs=_MAX_HIDDEN_PAIRS, limits=_HIDDEN_LIMITS)
    except (GrammarError, LimitExceeded):
        return None


def _reductions(subject: Subject) -> Iterator[tuple[str, Grammar, Grammar]]:
    """Yield parts of rules that may be left out, outer ones first: the rule, the part, and the rule without it."""
    for name, term in [("", subject.body), *subject.rules.items()]:
        if name in subject.terminals or (name and subject.defined and base_name(name) not in subject.defined):
            continue  # in a terminal, a template or a schema
        for node in reversed(list(postorder(term))):
            if isinstance(node, ir.Choice) and len(node.items) > 1:
                for part in node.items:
                    if _is_structure(part, subject):
                        yield name, part, _with(term, node, either([each for each in node.items if each is not part]))
            elif isinstance(node, ir.Repeat) and node.min == 0 and _is_structure(node.item, subject):
                yield name, node.item, _with(term, node, ir.EPSILON)


def _is_structure(part: Grammar, subject: Subject) -> bool:
    if isinstance(part, ir.Reference):
        return part.name not in subject.terminals
    return isinstance(part, ir.Sequence) or any(_is_structure(child, subject) for child in part.children)


def _with(term: Grammar, old: Grammar, new: Grammar) -> Grammar:
    """Return ``term`` with one node replaced."""
    return fold(term, lambda node, parts: new if node is old else with_children(node, parts))


def _is_free(node: Grammar) -> bool:
    """Return whether a term repeats most characters without bound."""
    if not isinstance(node, ir.Repeat) or node.max is not None:
        return False
    items = node.item.items if isinstance(node.item, ir.Choice) else (node.item,)
    ranges = [bounds for item in items if isinstance(item, ir.CharClass) for bounds in item.ranges]
    return 2 * sum(high - low + 1 for low, high in ranges) > ir.MAX_CODE_POINT
