"""Progress on standard error: one line that moves on a terminal, one line a step elsewhere."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Final, TextIO, final

__all__ = ["ProgressLine"]

_REDRAW_S: Final = 0.1
_QUARTERS: Final = 4


@final
class ProgressLine:
    """Shows the stages of a long step; it is a ``structgen.models.Progress``.

    On a terminal a stage is one line that is drawn over and over; elsewhere a stage is written when it begins and
    at every quarter of the way.

    Args:
        stream: where to write; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._moves = self._stream.isatty()
        self._stage = ""
        self._line = ""
        self._drawn = 0.0
        self._quarter = 0

    def __call__(self, stage: str, done: int, total: int | None, /) -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are through."""
        began = stage != self._stage
        if began:
            self.close()
            self._stage, self._quarter = stage, 0
        self._line = _line(stage, done, total)
        if self._moves:
            now = monotonic()
            if began or done == total or now - self._drawn >= _REDRAW_S:
                self._drawn = now
                self._write(f"\r\x1b[2K{self._line}")
        elif began:
            self._write(f"{stage}\n")
        elif total and done * _QUARTERS // total > self._quarter:
            self._quarter = done * _QUARTERS // total
            self._write(f"{self._line}\n")

    def close(self) -> None:
        """End the line of the stage that is shown."""
        if self._stage and self._moves:
            self._write(f"\r\x1b[2K{self._line}\n")
        self._stage = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _line(stage: str, done: int, total: int | None) -> str:
    if total:
        return f"{stage} {min(100, done * 100 // total)}%"
    return f"{stage} {done}" if done else stage
