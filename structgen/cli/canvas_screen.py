"""How a canvas is filled, on a terminal while it happens."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Final, TextIO, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.replay import slot_text

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.engine import Vocabulary

__all__ = ["CanvasScreen"]

_FREE: Final = "█"
_NEW, _DIM, _PLAIN = "\x1b[1;32m", "\x1b[2m", "\x1b[0m"


@final
class CanvasScreen:
    """Shows snapshots of canvases: drawn over and over on a terminal, a line each elsewhere.

    A free slot is a block; what was filled in last is highlighted, unless ``NO_COLOR`` is set (https://no-color.org).
    Nothing that tokens hold acts on the terminal: see ``slot_text``.

    Args:
        vocabulary: of the tokens.
        stream: where to write; standard error by default.
    """

    def __init__(self, vocabulary: Vocabulary, stream: TextIO | None = None) -> None:
        self._vocabulary = vocabulary
        self._stream = sys.stderr if stream is None else stream
        self._moves = self._stream.isatty()
        self._colours = self._moves and not os.environ.get("NO_COLOR")
        self._drawn = 0  # lines of the canvas that is shown

    def __call__(self, snapshot: Snapshot) -> None:
        """Show a snapshot; one without forward passes begins a canvas."""
        if not self._moves:
            self._write(f"{_counts(snapshot)}: {''.join(text for text, _ in self._slots(snapshot))}\n")
            return
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
        new = set(snapshot.committed.tolist())
        found: list[tuple[str, str]] = []
        ends = np.flatnonzero(np.isin(snapshot.canvas, self._vocabulary.eos))
        shown = snapshot.canvas[: ends[0] + 1] if len(ends) else snapshot.canvas
        for slot, token in enumerate(shown.tolist()):
            if token == FREE:
                found.append((_FREE, _DIM))
            else:
                found.append((slot_text(self._vocabulary, token), _NEW if slot in new else ""))
        return found

    def _write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()


def _counts(snapshot: Snapshot) -> str:
    filled = int((snapshot.canvas != FREE).sum())
    passes = "pass" if snapshot.forwards == 1 else "passes"
    return f"{snapshot.forwards} forward {passes}, {filled} of {len(snapshot.canvas)} slots"


def _columns(character: str) -> int:
    """The columns that a terminal gives a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
