"""``structgen diff``: whether a new description accepts all that an old one did."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from structgen.cli.failure import DONE, FAILED
from structgen.cli.source import SourceOptions, read_source, refusals, source_options

if TYPE_CHECKING:
    from structgen.engine.inclusion import Inclusion

__all__ = ["diff"]


@click.command()
@click.argument("paths", nargs=2, metavar="OLD NEW")
@source_options("flexible")
@click.option("--max-bytes", metavar="N", type=click.IntRange(0), help="Compare members of up to N bytes only.")
@click.option("--max-pairs", metavar="N", type=click.IntRange(1), help="Pairs of states to look at; else 50,000.")
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def diff(
    paths: tuple[str, str], source: SourceOptions, max_bytes: int | None, max_pairs: int | None, as_json: bool
) -> int:
    """Say whether NEW accepts everything that OLD did, and the other way round.

    OLD and NEW are grammars or JSON Schemas, of the same or of different kinds. For each direction in which they differ
    a shortest text is shown that only one of them accepts, with the place where it leaves the other. The answer is
    certain for regular languages, as JSON Schemas without recursion are; for others it may hold only up to a length,
    which is told.

    Exit status: 0 NEW accepts all that OLD did, as far as was looked; 1 it does not; 2 a file cannot be used.
    """
    from structgen.engine.inclusion import MOST_PAIRS, compare

    if source.regex is not None:
        raise click.UsageError("--regex names one description; write the expression into a Lark grammar to compare it")
    old, new = (read_source(path, source) for path in paths)
    with refusals(""):
        kept, added = compare(old.grammar, new.grammar, max_bytes=max_bytes, max_pairs=max_pairs or MOST_PAIRS)
    if as_json:
        values = {"new_accepts_old": _values(kept), "old_accepts_new": _values(added)}
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        click.echo(f"{_sentence('NEW', 'OLD', kept)}\n{_sentence('OLD', 'NEW', added)}")
    return FAILED if kept.witness is not None else DONE


def _values(found: Inclusion) -> dict[str, Any]:
    values: dict[str, Any] = {"holds": found.holds, "checked_bytes": found.checked_bytes, "pairs": found.pairs}
    if found.witness is not None:
        text = found.witness.text
        values["witness"] = text.decode("utf-8", "backslashreplace")
        values["offset"] = found.witness.offset
        values["is_incomplete"] = found.witness.is_incomplete
    return values


def _sentence(one: str, other: str, found: Inclusion) -> str:
    """What is known of whether ``one`` accepts all that ``other`` accepts."""
    if found.witness is not None:
        text = found.witness.text.decode("utf-8", "backslashreplace")
        shown = json.dumps(text, ensure_ascii=False)
        where = (
            f"is not complete for {one}"
            if found.witness.is_incomplete
            else f"leaves {one} at byte {found.witness.offset}"
        )
        return f"{one} does not accept all that {other} accepts: {shown} {where}"
    if found.checked_bytes is None:
        return f"{one} accepts all that {other} accepts"
    return (
        f"{one} accepts all that {other} accepts of up to {found.checked_bytes:,} bytes; "
        f"longer texts were not compared ({found.pairs:,} pairs of states)"
    )
