"""Parts without a bound on their length: white space, repetition, recursion; and rules that begin with themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from structgen.engine.lint.subject import Finding, Severity, Subject, named
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.nodes import (
    Budget,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
    postorder,
)

__all__ = ["unbounded_parts", "unbounded_white_space"]

_WHITE: Final = frozenset(code for code in range(0x3001) if chr(code).isspace())


def unbounded_white_space(subject: Subject) -> Iterator[Finding]:
    """Yield a finding where white space may go on without end, which small models are known to do.

    Complexity: linear.
    """
    places: dict[str, str] = {}
    known: dict[int, bool] = {}
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        for node in postorder(term):
            known[id(node)] = _is_white(node, known)
            if isinstance(node, Repeat) and node.max is None and known[id(node.item)]:
                places.setdefault(name, subject.place(name))
    if places:
        names = named(name for name in places if name) or "the grammar itself"
        yield Finding(
            "unbounded white space",
            Severity.INFORMATION,
            next((place for place in places.values() if place), ""),
            f"white space may be repeated without bound in {names}; a model may go on with it for ever",
            "bound it, for instance by / {0,4}/, or bound the tokens of the output",
        )


def _is_white(node: Grammar, known: dict[int, bool]) -> bool:
    """Whether a term has white space alone, and some."""
    match node:
        case Literal():
            return bool(node.data) and node.data.decode("utf-8", "replace").isspace()
        case CharClass() | ByteClass():
            size = sum(high - low + 1 for low, high in node.ranges)
            return 0 < size <= len(_WHITE) and all(
                code in _WHITE for low, high in node.ranges for code in range(low, high + 1)
            )
        case Sequence() | Choice() | Repeat() | Capture():
            return bool(node.children) and all(known[id(child)] for child in node.children)
        case _:
            return False


def unbounded_parts(subject: Subject) -> Iterator[Finding]:
    """Yield findings that name the rules without bound or budget, and those that begin with themselves.

    Complexity: linear.
    """
    graph = _without_budget(subject)
    recursive = [
        name for group in strongly_connected(graph) for name in group if len(group) > 1 or name in graph[group[0]]
    ]
    kept = set(recursive)
    recursive = [name for name in subject.rules if name in kept]
    repeating = [
        name
        for name, term in subject.rules.items()
        if name in graph and name not in kept and any(_repeats(node) for node in postorder(term, known=_has_budget))
    ]
    if recursive or repeating:
        causes = [f"recursion of {named(recursive)}"] if recursive else []
        causes += [f"repetition in {named(repeating)}"] if repeating else []
        yield Finding(
            "no bound on the length",
            Severity.INFORMATION,
            subject.place((recursive or repeating)[0]),
            f"members may have any length, by {' and '.join(causes)}",
            "no finite budget of tokens fits all members; bound them where you know a bound",
        )
    left = _left_recursive(subject)
    if left:
        yield Finding(
            "left recursion",
            Severity.INFORMATION,
            subject.place(left[0]),
            f"rules that begin with themselves: {named(left)}; they are rewritten, and the language is the same",
        )


def _without_budget(subject: Subject) -> dict[str, list[str]]:
    """The rules that are reached without passing a budget, with those that each refers to."""
    found: dict[str, list[str]] = {}
    agenda = [subject.body]
    while agenda:
        for node in postorder(agenda.pop(), known=_has_budget):
            if isinstance(node, Reference) and node.name in subject.rules and node.name not in found:
                term = subject.rules[node.name]
                below = postorder(term, known=_has_budget)
                found[node.name] = [each.name for each in below if isinstance(each, Reference)]
                agenda.append(term)
    return found


def _has_budget(node: Grammar) -> bool:
    return isinstance(node, Budget)


def _repeats(node: Grammar) -> bool:
    return isinstance(node, Repeat) and node.max is None


def _left_recursive(subject: Subject) -> list[str]:
    """The rules that may reach themselves before anything is read."""
    nullable = subject.nullability
    graph: dict[str, list[str]] = {}
    for name, term in subject.rules.items():
        first: list[str] = []
        agenda, seen = [term], set()
        while agenda:
            node = agenda.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Reference):
                first.append(node.name)
            elif isinstance(node, Sequence):
                for item in node.items:
                    agenda.append(item)
                    if not nullable(item):
                        break
            else:
                agenda += node.children
        graph[name] = first
    found = {name for group in strongly_connected(graph) for name in group if len(group) > 1 or name in graph[group[0]]}
    return [name for name in subject.rules if name in found]
