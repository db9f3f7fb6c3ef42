"""How outputs and what they cost are written."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from structgen.decode import DraftStats, Result, Stats

__all__ = ["accepted_drafts", "finite", "result_as_json", "write_costs"]


def result_as_json(result: Result, seed: int) -> str:
    """Return a result as one line of JSON."""
    held: dict[str, Any] = {
        "text": result.text,
        "value": result.value,
        "captures": result.captures,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "seed": seed,
        "logprob": finite(result.logprob),
        "log_z": finite(result.log_z),
        "unscored": result.unscored,
        "stats": result.stats.as_dict(),
    }
    if result.canvas is not None:
        held["canvas"] = {
            "slots": result.canvas.slots,
            "commits": [list(commit) for commit in result.canvas.commits],
            "forced": list(result.canvas.forced),
        }
    return json.dumps(held, ensure_ascii=False)


def write_costs(stats: Stats, *, slots: int | None = None) -> None:
    """Say on standard error what an output cost; ``slots`` are those of its canvas."""
    seconds = stats.time_mask_s + stats.time_model_s + stats.time_other_s
    on = "" if slots is None else f" on {slots} slots"
    drafted = stats.drafts is not None and stats.drafts.passes > 0
    each = f", {stats.tokens_per_forward:.1f} tokens a pass" if drafted else ""
    click.echo(
        f"{stats.tokens} tokens{on} in {seconds:.1f} s: {stats.forced} forced, {stats.forwards} forward passes"
        f"{each}{accepted_drafts(stats.drafts)}",
        err=True,
    )


def accepted_drafts(drafts: DraftStats | None) -> str:
    """How many of the drafted tokens were accepted, as the end of a sentence; nothing where none were run."""
    if drafts is None or not drafts.drafted:
        return ""
    return f", {drafts.accepted} of {drafts.drafted} drafted tokens accepted"


def finite(value: float) -> float | None:
    """JSON has no infinities: a probability of zero is null."""
    return value if math.isfinite(value) else None
