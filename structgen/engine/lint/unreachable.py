"""Rules that no way from the start leads to."""

from __future__ import annotations

from collections.abc import Iterator

from structgen.engine.lint.finding import Finding, Severity
from structgen.engine.lint.subject import Subject, base_name

__all__ = ["unreachable_rules"]


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
