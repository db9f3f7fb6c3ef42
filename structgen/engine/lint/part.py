"""Lints about single parts of a description: parts without an effect, and parts without a bound on their length.

Unbounded are white space, repetition and recursion; rules that begin with themselves are noted too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.constraint import compile
from structgen.engine.lint.subject import Finding, Severity, Subject, base_name, named
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.analysis import free_references, productive_rules, strongly_connected
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    Budget,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Reference,
    Repeat,
    Sequence,
    postorder,
)
from structgen.grammar.nodes.description import ReportEntry, Status

__all__ = [
    "empty_parts",
    "unbounded_parts",
    "unbounded_white_space",
    "unreachable_rules",
    "useless_captures",
    "weak_keywords",
]


def useless_captures(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each capture of nothing but the empty text, and each name that different parts have.

    Complexity: linear.
    """
    parts: dict[str, dict[Grammar, str]] = defaultdict(dict)
    empty: dict[str, str] = {}
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        is_empty: dict[int, bool] = {}
        for node in postorder(term):
            is_empty[id(node)] = _matches_only_empty(node, is_empty)
            if isinstance(node, Capture):
                parts[node.name].setdefault(node.item, name)
                if is_empty[id(node.item)]:
                    empty.setdefault(node.name, name)
    for capture, name in empty.items():
        yield Finding(
            "empty capture",
            Severity.INFORMATION,
            subject.place(name),
            f"capture {capture!r} has the empty text in every member",
            "put it around what it is to report, or remove it",
        )
    for capture, found in parts.items():
        if len(found) > 1:
            inside = ", ".join(
                dict.fromkeys(f"rule {name!r}" if name else "the grammar itself" for name in found.values())
            )
            yield Finding(
                "capture of several parts",
                Severity.INFORMATION,
                subject.place(next(iter(found.values()))),
                f"capture {capture!r} is the name of {len(found)} different parts, in {inside}",
                "give each a name of its own, if it matters which of them a text comes from",
            )


def _matches_only_empty(node: Grammar, known: dict[int, bool]) -> bool:
    """Whether the empty text is all that a term has."""
    if isinstance(node, Literal):
        return not node.data
    if isinstance(node, Repeat) and node.max == 0:
        return True
    return isinstance(node, (Sequence, Repeat, Capture)) and all(known[id(child)] for child in node.children)


_MAX_COMPILED: Final = 300
"""Intersections and complements that are compiled to see whether they are empty."""
_LIMITS: Final = Limits(regular_states=5_000, steps=2_000_000)


def empty_parts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each rule that has no members, and each part of a rule that can never match.

    Intersections and complements are decided by the engine within small limits; what takes more is passed over.

    Complexity: linear, and a compilation for each of up to 300 intersections and complements.
    """
    productive = productive_rules(subject.rules)
    alive = {base_name(name) for name in productive}  # of the variants of a rule some may have no members
    names = {id(term): name for name, term in subject.rules.items()}
    tried = 0
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        kind = "terminal" if name in subject.terminals else "rule"
        if name and name not in productive:
            if base_name(name) in alive:
                continue
            yield Finding(
                f"empty {kind}",
                Severity.WARNING,
                subject.place(name),
                f"{kind} {name!r} has no members, so that no alternative with it can match",
                "give it an alternative that ends, or remove it",
            )
            continue
        for node in postorder(term):
            if id(node) in names and names[id(node)] != name:
                continue
            found = _is_nothing(node)
            if found is None and tried < _MAX_COMPILED:
                tried += 1
                found = _is_unsatisfiable(node)
            if found:
                yield Finding(
                    "empty part",
                    Severity.WARNING,
                    subject.place(name),
                    f"a part of {f'{kind} {name!r}' if name else 'the grammar'} can never match: {_shown(node)}",
                    "correct it, or remove the alternatives that need it",
                )


def _is_nothing(node: Grammar) -> bool | None:
    """Whether a node without children has no members; None: it is to be compiled."""
    if isinstance(node, (ByteClass, CharClass)):
        return not node.ranges
    if isinstance(node, Choice):
        return not node.items
    return None if isinstance(node, (Intersection, Complement)) and not free_references(node) else False


def _is_unsatisfiable(node: Grammar) -> bool:
    try:
        compile(node, byte_vocabulary(node), limits=_LIMITS)
    except UnsatisfiableGrammar:
        return True
    except (LimitExceeded, GrammarError):
        return False
    return False


def _shown(node: Grammar) -> str:
    text = "a class without characters" if not isinstance(node, (Literal, Intersection, Complement)) else str(node)
    return text if len(text) <= 80 else text[:77] + "..."


def weak_keywords(entries: Iterable[ReportEntry]) -> Iterator[Finding]:
    """Yield a finding for each keyword that constrains less than its author may think.

    These are names that no specification knows, keywords that have no effect where they stand, and those that are
    left to a check at the end of a value.
    """
    from structgen.frontends.json_schema.report import KEYWORDS

    constraints = [name for name, keyword in KEYWORDS.items() if keyword.is_constraint]
    known = list(entries)
    for entry in known:
        if entry.status is Status.CHECKED:
            problem = f"{entry.keyword!r} is checked at the end of a value, not by the automaton"
            yield Finding("checked keyword", Severity.WARNING, entry.where, problem)
    for entry in known:
        if entry.status is not Status.ANNOTATION:
            continue
        if entry.keyword in constraints:
            problem = f"{entry.keyword!r} has no effect here" + (f": {entry.detail}" if entry.detail else "")
            yield Finding("keyword without effect", Severity.WARNING, entry.where, problem)
        elif entry.keyword not in KEYWORDS and not entry.keyword.startswith("x-"):
            near = get_close_matches(entry.keyword, constraints, 1)
            problem = f"{entry.keyword!r} is a keyword of no specification"
            yield Finding(
                "unknown keyword", Severity.WARNING, entry.where, problem, f"is {near[0]!r} meant?" if near else ""
            )


def unreachable_rules(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each rule that is defined and never used from the start.

    Complexity: linear.
    """
    used = {base_name(name) for name in subject.reachable()}
    for name in dict.fromkeys(base_name(name) for name in [*subject.defined, *subject.rules]):
        # A terminal that others contain is read in their place, so that only rules are certain.
        if name not in used and name not in subject.terminals:
            yield Finding(
                "unreachable rule",
                Severity.WARNING,
                subject.place(name),
                f"rule {name!r} is never used: no way from the start leads to it",
                "use it, or remove it",
            )


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
