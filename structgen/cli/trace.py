"""``structgen trace``: what happened in a program, as a page to read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import click

from structgen.cli.command import Command, completes_files, output_options
from structgen.cli.grammar_source import read_text
from structgen.cli.terminal import DONE, Failure

__all__ = ["trace"]

_VERSION: Final = 1
_WIDTH: Final = 26
_MAX_TEXT: Final = 400
_BAR: Final = 40
_MAX_SPANS: Final = 4


@click.command(
    cls=Command,
    examples=(
        'structgen run contact.py:contact --arg text="Call Bob" --trace contact.trace.json',
        "structgen trace contact.trace.json",
    ),
)
@click.argument("path", metavar="FILE", shell_complete=completes_files(".json"))
@output_options
def trace(path: str) -> int:
    """Show what happened in a run, token by token.

    FILE is the trace of a program, which `structgen run FILE.py:NAME --trace FILE` writes.
    With `structgen run ... --sampler smc --weights --trace FILE` the trace is that of the sampler: for each token the
    number of particles, the effective sample size, and whether particles were resampled.

    Each line is a token: its text, whether the grammar forced it, its probability among what was allowed, the
    probability that the model gave to what the mask removed, and the most probable other tokens.
    """
    try:
        held = json.loads(read_text(path))
        lines = list(_page(held, path))
    except (ValueError, RecursionError) as error:
        raise Failure(f"{path}: it is not valid JSON; {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise Failure(
            f"{path}: it is no trace of a program; {why}; write one with structgen run FILE.py:NAME --trace FILE"
        ) from error
    for line in lines:
        click.echo(line)
    return DONE


def _page(held: Any, path: str) -> Iterator[str]:
    if held["structgen_trace"] != _VERSION:
        raise Failure(
            f"{path}: the trace has version {held['structgen_trace']}; this structgen reads version {_VERSION}; "
            "write the trace again with --trace"
        )
    if "rounds" in held:
        yield from _sampling(held)
        return
    yield f"program {held['program']} on {held['model']}, seed {held['seed']}"
    for name, value in held["arguments"].items():
        yield f"  {name} = {_shortened(value)}"
    for number, answer in enumerate(held["answers"], 1):
        yield ""
        yield f"answer {number}: {answer['annotation']}, {answer['finish_reason']}"
        is_served = "steps" not in answer  # a server wrote it, and tells no probabilities
        if not is_served:
            yield from _steps(answer["steps"])
        for field in answer["fields"]:
            known = "" if is_served else f", probability {_probability(field['logprob'])}"
            cut = ", cut by the budget" if field.get("is_cut") else ""
            yield f"  {_field_name(field['path'])} = {_shortened(field['value'])}{known}{cut}"
        for each in answer.get("evidence", ()):
            yield f"  {_field_name(each['path'])} is quoted: {_quotation(each)}"
        for each in answer["violations"]:
            yield f"  refused {_field_name(each['path'])} = {_shortened(each['text'])}: {each['problem']}"
        if is_served:
            yield f"  {answer['tokens'] or 'unknown'} tokens in {answer['requests']} requests; no probabilities"
            for loss in answer["losses"]:
                yield f"  not enforced by the server: {loss['keyword']!r} at {loss['where']} {loss['problem']}"
            continue
        stats = answer["stats"]
        yield (
            f"  {stats['tokens']} tokens: {stats['forced']} forced, {stats['sampled']} chosen; "
            f"{stats['forwards']} forward passes; the masks removed {_removed_mass(answer['log_z'])} of the mass in all"
        )
        drafts = stats.get("drafts")
        if drafts is not None and drafts["passes"]:
            yield from _drafts(drafts, tokens=stats["tokens"], forwards=stats["forwards"])
    yield ""
    yield f"value: {_shortened(held['value'])}"


def _sampling(held: Any) -> Iterator[str]:
    """The picture of a run of a sampler: the effective sample size at each token, and when particles were resampled."""
    yield f"{held['sampler']} on {held['model']}, seed {held['seed']}"
    count = held["particles"]
    if held["rounds"]:
        yield ""
        yield f"  {'token':>5} {'live':>5} {'done':>5} {'distinct':>8} {'evidence':>9}  effective particles of {count}"
    for number, each in enumerate(held["rounds"], 1):
        bar = "#" * round(_BAR * each["ess"] / count)
        evidence = "-inf" if each["log_evidence"] is None else f"{each['log_evidence']:.3f}"
        resampled = "  resampled" if each["resampled"] else ""
        yield (
            f"  {number:>5} {each['live']:>5} {each['finished']:>5} {each['distinct']:>8} {evidence:>9}  "
            f"{bar:<{_BAR}} {each['ess']:.1f}{resampled}"
        )
    yield ""
    for output in held["outputs"]:
        yield f"  {output['weight']:.4f}  {_shortened(output['text'])}"
    evidence = "unknown" if held["log_evidence"] is None else f"{held['log_evidence']:.4f}"
    error = "" if held["standard_error"] is None else f" ± {held['standard_error']:.4f}"
    yield f"log evidence {evidence}{error}; {held['forwards']} forward passes, {held['queries']} queries"
    yield f"potentials: {held['verification']}"


def _drafts(drafts: Any, *, tokens: int, forwards: int) -> Iterator[str]:
    """The acceptance of drafts: by drafter, and by the number of tokens accepted in a row."""
    seconds = drafts["saved_s"]
    saved = f"{abs(seconds):.3f} s {'saved' if seconds >= 0 else 'lost'}"
    yield f"  drafts: {drafts['passes']} passes looked ahead, {tokens / forwards:.2f} tokens a pass; about {saved}"
    for name, source in drafts["sources"].items():
        yield f"    {name:{_WIDTH}} {source['accepted']:>5} of {source['drafted']:>5} accepted"
    lengths = sorted((int(length), count) for length, count in drafts["lengths"].items())
    most = max((count for _, count in lengths), default=0)
    for length, count in lengths:
        bar = "#" * max(round(_BAR * count / most), 1)
        yield f"    {length:>5} taken {count:>5} times  {bar}"


def _steps(steps: Any) -> Iterator[str]:
    yield f"  {'token':{_WIDTH}} {'chosen':>9} {'removed':>9}  others"
    for step in steps:
        text = "(stop)" if step["text"] is None else json.dumps(step["text"], ensure_ascii=False)
        chosen = "forced" if step["forced"] else _probability(step["logprob"])
        removed = "" if step["log_z"] is None else _removed_mass(step["log_z"])
        others = ", ".join(_other(other) for other in step["alternatives"])
        yield f"  {text:{_WIDTH}} {chosen:>9} {removed:>9}  {others}".rstrip()


def _quotation(each: Any) -> str:
    """Where a quotation stands in its document, by characters, and how probable it is where that is known."""
    (start, end), *others = each["spans"]
    shown = ", ".join(f"{start}-{end}" for start, end in others[:_MAX_SPANS])
    more = f" and {len(others) - _MAX_SPANS} times more" if len(others) > _MAX_SPANS else ""
    also = f" (also {shown}{more})" if others else ""
    known = "" if each["logprob"] is None else f", the most probable one with {_probability(each['logprob'])}"
    return f"{_shortened(each['text'])} at {start}-{end}{also}{known}"


def _other(other: Any) -> str:
    text = "(stop)" if other["text"] is None else json.dumps(other["text"], ensure_ascii=False)
    return f"{text} {_probability(other['logprob'])}"


def _probability(logprob: float | None) -> str:
    return "0" if logprob is None else f"{math.exp(logprob):.3g}"


def _removed_mass(log_z: float | None) -> str:
    return "1" if log_z is None else f"{-math.expm1(min(log_z, 0.0)):.3g}"


def _field_name(path: Any) -> str:
    from structgen.program.json_cursor import path_text

    return path_text(tuple(path)) or "the answer"


def _shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
