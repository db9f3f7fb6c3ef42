"""Lints about single parts of a description: parts without effect, left recursion, and parts of unbounded length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.constraint import compile
from structgen.engine.lint import Finding, Severity, Subject, base_name
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, some
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import cyclic_components, free_references, productive_rules
from structgen.grammar.left_recursion import left_recursive
from structgen.grammar.left_splitting import LeftPositions
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.nodes.description import ReportEntry, Status

__all__ = [
    "empty_parts",
    "unbounded_parts",
    "unbounded_white_space",
    "unreachable_rules",
    "useless_captures",
    "weak_keywords",
]

_MAX_NAMES: Final = 5
"""Names that one finding lists."""


def useless_captures(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each capture of nothing but the empty string, and each capture name of several parts.

    Complexity: linear.
    """
    parts: dict[str, dict[Grammar, str]] = defaultdict(dict)
    empty: dict[str, str] = {}
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        is_empty: dict[int, bool] = {}
        for node in postorder(term):
            is_empty[id(node)] = _matches_only_empty(node, is_empty)
            if isinstance(node, ir.Capture):
                parts[node.name].setdefault(node.item, name)
                if is_empty[id(node.item)]:
                    empty.setdefault(node.name, name)
    for capture, name in empty.items():
        yield Finding(
            "empty capture",
            Severity.INFORMATION,
            subject.location(name),
            f"capture {capture!r} always matches the empty string",
            "put it around the part that it should report, or remove it",
        )
    for capture, captured in parts.items():
        if len(captured) > 1:
            inside = ", ".join(
                dict.fromkeys(f"rule {name!r}" if name else "the grammar itself" for name in captured.values())
            )
            yield Finding(
                "capture of several parts",
                Severity.INFORMATION,
                subject.location(next(iter(captured.values()))),
                f"capture {capture!r} is the name of {len(captured)} different parts, in {inside}",
                "give each its own name if it matters which part a text comes from",
            )


def _matches_only_empty(node: Grammar, is_empty: dict[int, bool]) -> bool:
    """Return whether a term matches only the empty string, given the answers for its children."""
    if isinstance(node, ir.Literal):
        return not node.data
    if isinstance(node, ir.Repeat) and node.max == 0:
        return True
    return isinstance(node, (ir.Sequence, ir.Repeat, ir.Capture)) and all(
        is_empty[id(child)] for child in node.children
    )


_MAX_COMPILED: Final = 300
"""Intersections and complements that are compiled to see whether they are empty."""
_LIMITS: Final = Limits(regular_states=5_000, steps=2_000_000)


def empty_parts(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each rule that matches no string, and each part of a rule that can never match.

    Intersections and complements are compiled within small limits, and skipped if they need more.

    Complexity: linear, and a compilation for each of up to 300 intersections and complements.
    """
    productive = productive_rules(subject.rules)
    alive = {base_name(name) for name in productive}  # some variants of a rule may match nothing
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
                subject.location(name),
                f"{kind} {name!r} matches no string, so no alternative with it can match",
                "give it an alternative that ends, or remove it",
            )
            continue
        for node in postorder(term):
            if id(node) in names and names[id(node)] != name:
                continue
            is_nothing = _is_nothing(node)
            if is_nothing is None and tried < _MAX_COMPILED:
                tried += 1
                is_nothing = _is_unsatisfiable(node)
            if is_nothing:
                yield Finding(
                    "empty part",
                    Severity.WARNING,
                    subject.location(name),
                    f"a part of {f'{kind} {name!r}' if name else 'the grammar'} can never match: {_shown(node)}",
                    "correct it, or remove the alternatives that need it",
                )


def _is_nothing(node: Grammar) -> bool | None:
    """Return whether a node surely matches no string: a class or a choice without items.

    None for a closed intersection or complement, which must be compiled to know.
    """
    if isinstance(node, (ir.ByteClass, ir.CharClass)):
        return not node.ranges
    if isinstance(node, ir.Choice):
        return not node.items
    return None if isinstance(node, (ir.Intersection, ir.Complement)) and not free_references(node) else False


def _is_unsatisfiable(node: Grammar) -> bool:
    try:
        compile(node, byte_vocabulary(node), limits=_LIMITS)
    except UnsatisfiableGrammar:
        return True
    except (LimitExceeded, GrammarError):
        return False
    return False


def _shown(node: Grammar) -> str:
    text = (
        "a class without characters"
        if not isinstance(node, (ir.Literal, ir.Intersection, ir.Complement))
        else str(node)
    )
    return text if len(text) <= 80 else text[:77] + "..."


def weak_keywords(entries: Iterable[ReportEntry]) -> Iterator[Finding]:
    """Yield a finding for each keyword that constrains less than its author may expect.

    These are unknown keywords, keywords without effect at their location, and keywords that are only checked at the end
    of a value.
    """
    from structgen.frontends.json_schema.report import KEYWORDS, meant_keyword

    constraints = [name for name, keyword in KEYWORDS.items() if keyword.is_constraint]
    entries = list(entries)
    # A note of the front end about the policy: a keyword of this name would have no details.
    entries = [each for each in entries if each.keyword != "additional" or not each.detail]
    for entry in entries:
        if entry.status is Status.CHECKED:
            problem = f"{entry.keyword!r} is checked at the end of a value, not by the automaton"
            yield Finding("checked keyword", Severity.WARNING, entry.where, problem)
    unknown = [each for each in entries if each.status is Status.ANNOTATION and each.keyword not in KEYWORDS]
    if entries and len(unknown) == len(entries):
        problem = "no keyword of JSON Schema is here, so every value is allowed"
        yield Finding("no keyword", Severity.WARNING, "#", problem, "is this a document, and not its schema?")
    for entry in entries:
        if entry.status is not Status.ANNOTATION:
            continue
        if entry.keyword in constraints:
            problem = f"{entry.keyword!r} has no effect here" + (f": {entry.detail}" if entry.detail else "")
            yield Finding("keyword without effect", Severity.WARNING, entry.where, problem)
        elif entry.keyword not in KEYWORDS and not entry.keyword.startswith("x-"):
            near = meant_keyword(entry.keyword)
            problem = f"{entry.keyword!r} is no keyword of any specification"
            yield Finding(
                "unknown keyword", Severity.WARNING, entry.where, problem, f"is {near!r} meant?" if near else ""
            )


def unreachable_rules(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each rule that is defined and not reachable from the start.

    Complexity: linear.
    """
    used = {base_name(name) for name in subject.reachable()}
    for name in dict.fromkeys(base_name(name) for name in [*subject.defined, *subject.rules]):
        # A terminal inside other terminals is inlined, so only rules are certain to be unused.
        if name not in used and name not in subject.terminals:
            yield Finding(
                "unreachable rule",
                Severity.WARNING,
                subject.location(name),
                f"rule {name!r} is never used: it cannot be reached from the start",
                "use it, or remove it",
            )


_WHITE: Final = frozenset(code for code in range(0x3001) if chr(code).isspace())


def unbounded_white_space(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for unbounded white space, which small models are known to repeat forever.

    Complexity: linear.
    """
    locations: dict[str, str] = {}
    is_white: dict[int, bool] = {}
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        for node in postorder(term):
            is_white[id(node)] = _is_white(node, is_white)
            if isinstance(node, ir.Repeat) and node.max is None and is_white[id(node.item)]:
                locations.setdefault(name, subject.location(name))
    if locations:
        names = some((name for name in locations if name), _MAX_NAMES) or "the grammar itself"
        yield Finding(
            "unbounded white space",
            Severity.INFORMATION,
            next((location for location in locations.values() if location), ""),
            f"white space may be repeated without bound in {names}; a model may repeat it forever",
            "bound it, for instance by / {0,4}/, or bound the tokens of the output",
        )


def _is_white(node: Grammar, is_white: dict[int, bool]) -> bool:
    """Return whether a term matches only white space, and some, given the answers for its children."""
    match node:
        case ir.Literal():
            return bool(node.data) and node.data.decode("utf-8", "replace").isspace()
        case ir.CharClass() | ir.ByteClass():
            size = sum(high - low + 1 for low, high in node.ranges)
            return 0 < size <= len(_WHITE) and all(
                code in _WHITE for low, high in node.ranges for code in range(low, high + 1)
            )
        case ir.Sequence() | ir.Choice() | ir.Repeat() | ir.Capture():
            return bool(node.children) and all(is_white[id(child)] for child in node.children)
        case _:
            return False


def unbounded_parts(subject: Subject) -> Iterator[Finding]:
    """Yield findings that name the rules of unbounded length, and the left-recursive rules.

    Complexity: linear.
    """
    graph = _without_budget(subject)
    cyclic = {name for group in cyclic_components(graph) for name in group}
    recursive = [name for name in subject.rules if name in cyclic]
    repeating = [
        name
        for name, term in subject.rules.items()
        if name in graph and name not in cyclic and any(_repeats(node) for node in postorder(term, known=_has_budget))
    ]
    if recursive or repeating:
        causes = [f"recursion of {some(recursive, _MAX_NAMES)}"] if recursive else []
        causes += [f"repetition in {some(repeating, _MAX_NAMES)}"] if repeating else []
        yield Finding(
            "no bound on the length",
            Severity.INFORMATION,
            subject.location((recursive or repeating)[0]),
            f"strings may have any length, by {' and '.join(causes)}",
            "no finite token budget fits all of them; add bounds where you know them",
        )
    flat = ir.Rules(subject.rules, subject.body)
    found = {name for group in left_recursive(flat, LeftPositions(flat, subject.nullability)) for name in group}
    left = [name for name in subject.rules if name in found]
    if left:
        yield Finding(
            "left recursion",
            Severity.INFORMATION,
            subject.location(left[0]),
            f"left-recursive rules: {some(left, _MAX_NAMES)}; they are rewritten without changing the language",
        )


def _without_budget(subject: Subject) -> dict[str, list[str]]:
    """Return the rules that are reached without passing a budget, with the rules that each refers to."""
    references: dict[str, list[str]] = {}
    agenda = [subject.body]
    while agenda:
        for node in postorder(agenda.pop(), known=_has_budget):
            if isinstance(node, ir.Reference) and node.name in subject.rules and node.name not in references:
                term = subject.rules[node.name]
                below = postorder(term, known=_has_budget)
                references[node.name] = [each.name for each in below if isinstance(each, ir.Reference)]
                agenda.append(term)
    return references


def _has_budget(node: Grammar) -> bool:
    return isinstance(node, ir.Budget)


def _repeats(node: Grammar) -> bool:
    return isinstance(node, ir.Repeat) and node.max is None
