"""The tables of docs/reference/json-schema.md: keywords with their treatment and their counts, and formats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from structgen.frontends.json_schema.formats import ASSERTED
from structgen.frontends.json_schema.report import KEYWORDS

__all__ = ["PAGE", "page_with"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "json-schema.md"
_STATUSES = ("enforced", "annotation", "refused", "in a refused schema")


def page_with(text: str, counts: Counter[tuple[str, str]]) -> str:
    """Return the page with its tables made anew.

    Args:
        text: the page; a table stands between ``<!-- NAME: ... -->`` and ``<!-- end -->``.
        counts: occurrences by (keyword, status).

    Raises:
        ValueError: the page has no place for one of the tables.
    """
    for name, table in (("keywords", _keywords(counts)), ("formats", _formats())):
        pattern = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{PAGE.name}: no place for the table of {name}")
        text = pattern.sub(lambda found, table=table: f"{found[1]}{table}{found[2]}", text)
    return text


def _keywords(counts: Counter[tuple[str, str]]) -> str:
    statuses = [status.replace("annotation", "no effect") for status in _STATUSES]
    rows = [["keyword", "about", "drafts", "treatment", *statuses]]
    for name, keyword in KEYWORDS.items():
        if keyword.is_constraint:
            found = [f"{counts[name, status]:,}" if counts[name, status] else "" for status in _STATUSES]
            rows.append([f"`{name}`", keyword.topic, keyword.drafts(name), keyword.treatment, *found])
    others = ", ".join(f"`{name}`" for name, keyword in KEYWORDS.items() if not keyword.is_constraint)
    rest = f"Without effect on which values are valid: {others}, and every name that no specification knows."
    return f"{_table(rows)}\n{rest}\n"


def _formats() -> str:
    rows = [["format", "treatment"]]
    rows += [[f"`{name}`", "; ".join(filter(None, ("enforced", one.left_out)))] for name, one in ASSERTED.items()]
    return _table(rows)


def _table(rows: Iterable[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
