"""``structgen sample``: members of a description, drawn uniformly."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from structgen.cli.failure import DONE
from structgen.cli.source import SourceOptions, read_source, refusals, source_options

__all__ = ["sample"]

_MAX_BYTES: Final = 80


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("compact")
@click.option("-n", "count", metavar="K", type=click.IntRange(0), default=10, show_default=True, help="How many.")
@click.option(
    "--max-bytes",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=_MAX_BYTES,
    show_default=True,
    help="Length of the longest.",
)
@click.option("--exactly", metavar="N", type=click.IntRange(0, 100_000), help="Only members of N bytes.")
@click.option("--seed", metavar="S", type=int, default=0, show_default=True, help="Equal seeds give equal members.")
@click.option("--uniform", is_flag=True, help="Each member up to that length with the same probability.")
@click.option("--any-character", is_flag=True, help="Any character that may stand, not only printable ASCII.")
@click.option("--json", "as_json", is_flag=True, help="Write each member as a JSON string on a line.")
def sample(paths: tuple[str, ...], source: SourceOptions, as_json: bool, **options: Any) -> int:
    """Draw members of the language of FILE, each on a line.

    FILE is a grammar or a JSON Schema, or - for a JSON Schema on standard input. A length is drawn first, uniformly
    from those that have members, then the shape of a member of that length, then characters where several are alike.
    With --uniform every member is as likely as any other, so that nearly all are of the greatest length.
    """
    from structgen.engine.members import UniformMembers

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    exactly: int | None = options["exactly"]
    bound = options["max_bytes"] if exactly is None else exactly
    with refusals(read.label):
        members = UniformMembers(read.grammar, bound, alphabet="any" if options["any_character"] else "printable")
        count, seed = options["count"], options["seed"]
        if options["uniform"]:
            drawn = members.draw(count, seed, exactly=exactly)
        else:
            drawn = members.draw(count, seed, exactly=exactly, lengths="even", among="shapes")
    for member in drawn:
        click.echo(_as_json(member) if as_json else member)
    return DONE


def _as_json(member: bytes) -> str:
    """The member as a JSON string; one that is no text as an object that has its bytes."""
    try:
        return json.dumps(member.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"hex": member.hex()})
