"""What the command line writes: exit statuses and errors, canvases on standard error, results, costs; and colours."""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO, final

import click

from structgen.errors import BudgetError, GenerationError, ModelError, StructgenError, number_of

if TYPE_CHECKING:
    from structgen.decode import DraftStats, Result, Stats
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.engine import Vocabulary

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "PIPE_CLOSED",
    "UNUSABLE",
    "CanvasScreen",
    "Failure",
    "accepted_drafts",
    "colours",
    "cut_text",
    "finite",
    "lines_told",
    "noted",
    "result_as_json",
    "result_values",
    "say",
    "status_of",
    "write_costs",
]

DONE: Final = 0
FAILED: Final = 1
"""The input does not match, or generation failed."""
UNUSABLE: Final = 2
"""The arguments or the input cannot be used."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell reports a process that SIGINT ended."""
PIPE_CLOSED: Final = 141
"""The output pipe is closed, as a shell reports a process that SIGPIPE ended."""


def colours() -> bool | None:
    """Whether the environment wants colours; None: where the output is a terminal.

    ``NO_COLOR`` and ``FORCE_COLOR`` count unless they are empty (https://no-color.org, https://force-color.org), then
    ``CLICOLOR_FORCE`` and ``CLICOLOR`` unless they are 0 (https://bixense.com/clicolors); a dumb terminal has none.
    The first of these decides, as in Python itself.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return False if os.environ.get("CLICOLOR") == "0" or os.environ.get("TERM") == "dumb" else None


def say(kind: str, message: str) -> None:
    """Write a message to standard error, with its kind (``error``, ``warning``, ``note``) in a colour of its own."""
    mark = click.style(f"{kind}:", fg=_MARKS.get(kind), bold=True)
    click.echo(f"{mark} {message}", err=True, color=colours())


@contextmanager
def noted(kind: type[Warning]) -> Iterator[None]:
    """Write warnings of a kind as notes on standard error, without their place in the code."""
    others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, kind):
            say("note", str(message))
        else:
            others(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", kind)
        warnings.showwarning = show
        yield


_MARKS: Final = {"error": "red", "warning": "yellow"}


class Failure(Exception):
    """A command ends here: ``message`` goes to standard error, and ``status`` is the exit status."""

    def __init__(self, message: str, status: int = UNUSABLE) -> None:
        self.message = message
        self.status = status
        super().__init__(message)


def lines_told(total: int, *, done: int, failed: int, earlier: int) -> str:
    """A summary of lines: ``earlier`` of those that are done or failed belong to an earlier run.

    >>> lines_told(9, done=5, failed=1, earlier=4)
    '9 lines: 5 done, 1 failed, 3 left; 4 of these rows are from an earlier run'
    """
    told = f"{number_of(total, 'line')}: {done} done, {failed} failed, {total - done - failed} left"
    return f"{told}; {earlier} of these rows are from an earlier run" if earlier else told


def status_of(error: StructgenError) -> int:
    """Return the exit status for an error of the library."""
    if isinstance(error, (GenerationError, ModelError)) and not isinstance(error, BudgetError):
        return FAILED
    return UNUSABLE


def result_values(result: Result, seed: int) -> dict[str, Any]:
    """Return a result as values of JSON."""
    held: dict[str, Any] = {
        "text": result.text,
        "value": result.value,
        "captures": result.captures,
        "tokens": list(result.tokens),
        "finish_reason": result.finish_reason,
        "cut_at": result.cut_at,
        "cut_byte": result.cut_byte,
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
    return held


def result_as_json(result: Result, seed: int) -> str:
    """Return a result as one line of JSON."""
    return json.dumps(result_values(result, seed), ensure_ascii=False)


def write_costs(stats: Stats, *, slots: int | None = None, cut: str = "") -> None:
    """Say on standard error what an output cost, and what the budget cut.

    Args:
        stats: of the output.
        slots: of its canvas.
        cut: what was written while the budget excluded tokens, as the subject of a sentence; empty if nothing.
    """
    seconds = stats.time_mask_s + stats.time_model_s + stats.time_other_s
    on = "" if slots is None else f" on {slots} slots"
    drafted = stats.drafts is not None and stats.drafts.passes > 0
    each = f", {stats.tokens_per_forward:.1f} tokens a pass" if drafted else ""
    tokens = "token" if stats.tokens == 1 else "tokens"
    passes = "forward pass" if stats.forwards == 1 else "forward passes"
    click.echo(
        f"{stats.tokens} {tokens}{on} in {seconds:.1f} s: {stats.forced} forced, {stats.forwards} {passes}"
        f"{each}{accepted_drafts(stats.drafts)}{', cut by the budget' if cut else ''}",
        err=True,
    )
    if cut:
        raised = "--max-tokens" if slots is None else "--canvas or --max-tokens"
        say(
            "warning",
            f"{cut} may differ from what the model would have written: the budget excluded tokens that the grammar "
            f"allows; raise {raised}",
        )


def cut_text(result: Result) -> str:
    """A note on what the budget cut from an output, for ``write_costs``."""
    if result.cut_byte is None:
        return ""
    return (
        "the end of the output" if result.cut_byte >= len(result.data) else f"the output from byte {result.cut_byte} on"
    )


def accepted_drafts(drafts: DraftStats | None) -> str:
    """How many of the drafted tokens were accepted, as the end of a sentence; nothing where none were run."""
    if drafts is None or not drafts.drafted:
        return ""
    return f", {drafts.accepted} of {drafts.drafted} drafted tokens accepted"


def finite(value: float) -> float | None:
    """JSON has no infinities: a probability of zero is null."""
    return value if math.isfinite(value) else None


_FREE: Final = "█"
_NEW, _DIM, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


@final
class CanvasScreen:
    """Shows snapshots of canvases, by default on standard error.

    On a terminal a canvas is drawn over and over; elsewhere a snapshot is a line.  A free slot is a block; what was
    filled in last is highlighted, where there are ``colours``.  Nothing that tokens hold acts on the terminal: see
    ``slot_text``.
    """

    def __init__(self, vocabulary: Vocabulary, stream: TextIO | None = None) -> None:
        self._vocabulary = vocabulary
        self._stream = sys.stderr if stream is None else stream
        self._moves = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._colours = self._moves and colours() is not False
        self._drawn = 0  # lines of the canvas that is shown

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot; one without forward passes begins a canvas."""
        if not self._moves:
            self._write(f"{_counts(snapshot)}: {''.join(text for text, _ in self._slots(snapshot))}\n")
            return
        import shutil  # with all of its compressions

        size = shutil.get_terminal_size()
        lines = self._lines(snapshot, max(size.columns, 2))
        most = max(size.lines - 2, 1)  # what has scrolled away cannot be drawn again
        cut = len(lines) > most
        lines = [*lines[: most - 1], "..."] if cut else lines
        lines.append(_counts(snapshot))
        back = f"\x1b[{self._drawn}A" if self._drawn and snapshot.forwards else ""
        self._drawn = len(lines)
        self._write(f"{back}\r\x1b[J" + "\n".join(lines) + "\n")

    def _lines(self, snapshot: Snapshot, width: int) -> list[str]:
        """The slots in lines of at most ``width`` columns, with colours."""
        lines, line, used = [], "", 0
        for text, colour in self._slots(snapshot):
            for character in text:
                columns = _columns(character)
                if used + columns > width:
                    lines.append(line)
                    line, used = "", 0
                line += f"{colour}{character}{_PLAIN}" if self._colours and colour else character
                used += columns
        return [*lines, line]

    def _slots(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        """The text and the colour of each slot; of the end, which fills all slots after it, only the first."""
        import numpy as np

        from structgen.decode.diffusion.replay import slot_text

        new = set(snapshot.committed.tolist())
        found: list[tuple[str, str]] = []
        ends = np.flatnonzero(np.isin(snapshot.canvas, self._vocabulary.eos))
        shown = snapshot.canvas[: ends[0] + 1] if len(ends) else snapshot.canvas
        for slot, token in enumerate(shown.tolist()):
            if token < 0:
                found.append((_FREE, _DIM))
            else:
                found.append((slot_text(self._vocabulary, token), _NEW if slot in new else ""))
        return found

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def _counts(snapshot: Snapshot) -> str:
    filled = int((snapshot.canvas >= 0).sum())
    passes = "pass" if snapshot.forwards == 1 else "passes"
    return f"{snapshot.forwards} forward {passes}, {filled} of {len(snapshot.canvas)} slots"


def _columns(character: str) -> int:
    """The columns that a terminal gives a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
