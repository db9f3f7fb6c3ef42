"""Progress: what a long step shows on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, ParamSpec, Protocol, TextIO, TypeVar, cast, final

from structgen.errors import ArgumentError, found

__all__ = ["Progress", "ProgressBar", "in_notebook", "shown", "silent", "watched", "with_progress"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


class Progress(Protocol):
    """A callback for the progress of a long step, called in the thread that started the step."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are done.

        Args:
            stage: a short English phrase; a new phrase ends the previous stage.
            done: units done; the unit (bytes, tensors) depends on the stage.
            total: units in all; None if unknown.
        """


def silent(stage: str, done: int, total: int | None, /) -> None:
    """Report nothing: the default ``Progress``."""


_PATIENCE_S: Final = 2.0
"""Steps that take less time show no progress."""
_REDRAW_S: Final = 0.1
_TICK_S: Final = 0.5
_COLUMNS: Final = 24
_COUNTED: Final = 10_000
"""From here on units are bytes, and are shown rounded."""
_QUARTERS: Final = 4


@dataclass(slots=True)
class _Stage:
    name: str
    done: int
    total: int | None
    note: str
    began: float

    @property
    def share(self) -> float | None:
        return min(1.0, max(0.0, self.done / self.total)) if self.total else None

    def facts(self, now: float) -> str:
        """The text after the bar, or instead of it."""
        took, share = now - self.began, self.share
        if share is None or self.total is None:
            parts = [str(self.done) if self.done else "", f"{took:.0f} s" if took >= _PATIENCE_S else ""]
        else:
            left = took * (1 - share) / share if share else 0.0
            parts = [
                f"{share:.0%}" if share == 1 else f"{int(100 * share)}%",
                f"{self.done} of {self.total}" if self.total < _COUNTED else "",
                f"{left:.0f} s left" if left >= 1 and took >= 1 else "",
            ]
        return ", ".join(part for part in [*parts, self.note] if part)

    def line(self, now: float) -> str:
        """The stage on one line."""
        share, facts = self.share, self.facts(now)
        if share is None:
            return f"{self.name} {facts}".rstrip()
        full = int(_COLUMNS * share)
        return f"{self.name} [{'#' * full}{'-' * (_COLUMNS - full)}] {facts}"


class _Surface(Protocol):
    """Where stages are drawn: the same one over and over, and in the end for the last time."""

    def draw(self, stage: _Stage, now: float) -> None: ...
    def end(self, stage: _Stage, now: float) -> None: ...


class _Terminal:
    """A line that is drawn over and over, and stays."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, stage: _Stage, now: float) -> None:
        import shutil  # with all of its compressions

        width = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be drawn over
        self._stream.write(f"\r\x1b[2K{stage.line(now)[:width]}")
        self._stream.flush()

    def end(self, stage: _Stage, now: float) -> None:
        self.draw(stage, now)
        self._stream.write("\n")
        self._stream.flush()


class _PlainTerminal:
    """Whole lines, when a stage begins and at each quarter: the terminal cannot move its cursor."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage: _Stage | None = None
        self._quarter = 0

    def draw(self, stage: _Stage, now: float) -> None:
        quarter = int(_QUARTERS * (stage.share or 0.0))
        if stage is self._stage and quarter == self._quarter:
            return
        self._stage, self._quarter = stage, quarter
        self._stream.write(f"{stage.line(now)}\n")
        self._stream.flush()

    def end(self, stage: _Stage, now: float) -> None:
        self.draw(stage, now)
        self._stage = None


class _Notebook:
    """An output of the cell that is replaced over and over, and is empty in the end."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, stage: _Stage, now: float) -> None:
        import html

        share, text = stage.share, html.escape(f"{stage.name} {stage.facts(now)}".rstrip())
        filled = f'<progress style="vertical-align:middle" max="1" value="{share:.4f}"></progress> '
        self._show(stage.line(now), f'<div style="font-size:90%">{"" if share is None else filled}{text}</div>')

    def end(self, stage: _Stage, now: float) -> None:
        if self._handle is not None:
            self._show("", "")
        self._handle = None

    def _show(self, text: str, source: str) -> None:
        display: Any = importlib.import_module("IPython.display")
        shown = {"text/plain": text, "text/html": source}
        if self._handle is None:
            self._handle = display.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process, so that outputs are shown in a notebook."""
    interactive = sys.modules.get("IPython")
    shell = getattr(interactive, "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _surface(stream: TextIO | None) -> _Surface | None:
    if stream is None and in_notebook():
        return _Notebook()
    stream = sys.stderr if stream is None else stream
    if stream is None or not stream.isatty():  # pythonw has no standard error
        return None
    return _PlainTerminal(stream) if os.environ.get("TERM") == "dumb" else _Terminal(stream)


@final
class ProgressBar:
    """Shows the stages of a long step: a ``structgen.models.Progress``, and a ``with`` block that closes it.

    In a notebook the stage is an output of the cell, which goes away in the end.  On a terminal it is a line of
    standard error, with a bar where the number of units is known, else with the seconds that it takes.  Elsewhere
    nothing is shown.

    Args:
        stream: what is written to; None: the notebook if there is one, else standard error.
        patience_s: seconds before a stage is shown at all.
    """

    def __init__(self, stream: TextIO | None = None, *, patience_s: float = 0.0) -> None:
        self._surface = _surface(stream)
        self._patience_s = patience_s
        self._stage: _Stage | None = None
        self._drawn: float | None = None  # when this stage was; None before
        self._lock = threading.RLock()
        self._closed: threading.Event | None = None  # ends the thread that draws while nothing is reported

    def __call__(self, stage: str, done: int, total: int | None, /, note: str = "") -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are done; ``note`` is shown after them."""
        if self._surface is None:
            return
        with self._lock:
            now = monotonic()
            if self._stage is None or stage != self._stage.name:
                self._end(now)
                self._stage = _Stage(stage, done, total, note, now)
            else:
                self._stage.done, self._stage.total, self._stage.note = done, total, note
            if self._drawn is None or done == total or now - self._drawn >= _REDRAW_S:
                self._draw(now)
            if self._closed is None:
                self._closed = threading.Event()
                threading.Thread(target=self._tick, args=(self._closed,), daemon=True).start()

    @contextmanager
    def running(self, stage: str) -> Iterator[None]:
        """Show ``stage`` and the time that it takes, while the block runs."""
        self(stage, 0, None)
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """End the stage that is shown."""
        with self._lock:
            self._end(monotonic())
            if self._closed is not None:
                self._closed.set()
            self._closed = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tick(self, closed: threading.Event) -> None:
        while not closed.wait(_TICK_S):
            with self._lock:
                now = monotonic()
                if not closed.is_set() and (self._drawn is None or now - self._drawn >= _TICK_S):
                    self._draw(now)

    def _draw(self, now: float) -> None:
        if self._surface is not None and self._stage is not None and now - self._stage.began >= self._patience_s:
            self._drawn = now
            self._surface.draw(self._stage, now)

    def _end(self, now: float) -> None:
        if self._surface is not None and self._stage is not None and self._drawn is not None:
            self._surface.end(self._stage, now)
        self._stage = self._drawn = None


@contextmanager
def shown(*, progress: Progress | bool | None) -> Iterator[Progress]:
    """The callback for a parameter ``progress``.

    None shows what takes long in a notebook, where nothing else would; True shows everything there and on a terminal;
    False shows nothing; a callback is called.

    Raises:
        ArgumentError: it is something else.
    """
    if progress is False or (progress is None and not in_notebook()):
        yield silent
    elif progress is None or progress is True:
        with ProgressBar(patience_s=0.0 if progress else _PATIENCE_S) as bar:
            yield bar
    elif callable(progress):
        yield progress
    else:
        raise ArgumentError(
            "progress", "expected True, False or a callback", evidence=found(progress), remedy="write progress=True"
        )


def watched(stage: str, *, always: bool = False) -> AbstractContextManager[None]:
    """Show ``stage`` while the block runs, once it takes long: in a notebook, or ``always`` where somebody watches."""
    return ProgressBar(patience_s=_PATIENCE_S).running(stage) if always or in_notebook() else nullcontext()


def with_progress(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """Give a function with a keyword ``progress`` a callback for what it was given: see ``shown``."""

    @functools.wraps(function)
    def reporting(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        with shown(progress=cast("Progress | bool | None", kwargs.get("progress"))) as progress:
            kwargs["progress"] = progress
            return function(*args, **kwargs)

    return reporting
