"""``structgen convert``: a description in another notation, and what is lost thereby."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias, get_args

import click

from structgen.cli.failure import DONE, FAILED
from structgen.cli.source import SourceOptions, read_source, refusals, source_options, unreadable

__all__ = ["Target", "convert"]

Target: TypeAlias = Literal["gbnf", "ebnf", "lark", "llguidance", "json-schema"]
"""The notations of ``structgen.grammar.dialects``, which is imported only where it is needed."""


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@click.option("--to", "target", type=click.Choice(get_args(Target)), required=True, help="The notation to write.")
@click.option("-o", "--output", metavar="OUT", help="Write to a file instead of standard output.")
@click.option("--strict", is_flag=True, help="Exit with 1 if anything is lost, be it an annotation or a name.")
@click.option("--superset", is_flag=True, help="Leave out what cannot be said; the written language is larger then.")
@source_options("flexible")
def convert(
    paths: tuple[str, ...], source: SourceOptions, target: Target, output: str | None, strict: bool, superset: bool
) -> int:
    """Write FILE in another notation.

    FILE is a JSON Schema or a grammar. The written language is the same: what cannot be said is refused with its
    name, and the exit status is 2, unless --superset leaves it out. Annotations and names that are lost are listed
    on standard error; --strict makes that exit status 1.
    """
    from structgen.grammar.dialects import write

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    with refusals(read.label):
        written = write(read.grammar, target, superset=superset)
    if output is None:
        click.echo(written.text, nl=False)
    else:
        try:
            Path(output).write_text(written.text, encoding="utf-8", newline="\n")
        except (OSError, ValueError) as error:
            raise unreadable(output, error) from error
    for loss in written.losses:
        click.echo(f"lost: {loss}", err=True)
    return FAILED if strict and written.losses else DONE
