"""Captures that report nothing of use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.subject import Subject
from structgen.grammar.nodes import Capture, Grammar, Literal, Repeat, Sequence, postorder

__all__ = ["useless_captures"]


def useless_captures(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for each capture of nothing but the empty text, and each name that different parts have.

    Complexity: linear.
    """
    parts: dict[str, dict[Grammar, str]] = defaultdict(dict)
    empty: dict[str, str] = {}
    for name, term in [*subject.rules.items(), ("", subject.body)]:
        is_empty: dict[int, bool] = {}
        for node in postorder(term):
            is_empty[id(node)] = _is_empty(node, is_empty)
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


def _is_empty(node: Grammar, known: dict[int, bool]) -> bool:
    """Whether the empty text is all that a term has."""
    if isinstance(node, Literal):
        return not node.data
    if isinstance(node, Repeat) and node.max == 0:
        return True
    return isinstance(node, (Sequence, Repeat, Capture)) and all(known[id(child)] for child in node.children)
