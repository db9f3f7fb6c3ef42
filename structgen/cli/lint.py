"""Finds keywords of a report that look as if they constrained something and do not."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from structgen.grammar.report import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine import Report

__all__ = ["lint"]

_ANNOTATIONS: Final = frozenset(
    (
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$comment", "$vocabulary"),
        *("$defs", "definitions", "title", "description", "default", "example", "examples", "deprecated"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        *("discriminator", "externalDocs", "xml"),
    )
)
"""Keywords of JSON Schema and OpenAPI that exclude no value."""


def lint(report: Report) -> Iterator[str]:
    """Yield a line for each keyword that has no effect on the language though its author may think so.

    These are names that no specification knows, and keywords that have no effect where they stand.
    """
    from structgen.grammar.json_schema.reading import CONSTRAINTS

    for entry in report.with_status(Status.ANNOTATION):
        place = f"{entry.where}: {entry.keyword!r}"
        if entry.keyword in CONSTRAINTS:
            yield f"{place} has no effect here" + (f": {entry.detail}" if entry.detail else "")
        elif entry.keyword not in _ANNOTATIONS and not entry.keyword.startswith("x-"):
            near = get_close_matches(entry.keyword, CONSTRAINTS, 1)
            yield f"{place} is a keyword of no specification" + (f"; is {near[0]!r} meant?" if near else "")
