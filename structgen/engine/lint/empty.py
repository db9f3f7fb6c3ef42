"""Rules and parts of rules that nothing can match."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from structgen.engine.constraint import compile
from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.subject import Subject, base_name
from structgen.engine.single_bytes import byte_vocabulary
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.analysis import free_references, productive_rules
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import ByteClass, CharClass, Choice, Complement, Grammar, Intersection, Literal, postorder

__all__ = ["empty_parts"]

_MOST_TRIED: Final = 300
"""Intersections and complements that are compiled to see whether they are empty."""
_SMALL: Final = Limits(regular_states=5_000, steps=2_000_000)


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
            if found is None and tried < _MOST_TRIED:
                tried += 1
                found = _is_empty(node)
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


def _is_empty(node: Grammar) -> bool:
    try:
        compile(node, byte_vocabulary(node), limits=_SMALL)
    except UnsatisfiableGrammar:
        return True
    except (LimitExceeded, GrammarError):
        return False
    return False


def _shown(node: Grammar) -> str:
    text = "a class without characters" if not isinstance(node, (Literal, Intersection, Complement)) else str(node)
    return text if len(text) <= 80 else text[:77] + "..."
