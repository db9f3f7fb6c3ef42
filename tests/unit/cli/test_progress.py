"""Progress on terminals and in files."""

from __future__ import annotations

import io

from structgen.cli.terminal import ProgressLine


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_a_line_for_each_quarter() -> None:
    """In a file, a stage is reported when it begins and at every quarter."""
    stream = io.StringIO()
    progress = ProgressLine(stream)
    for done in range(0, 101, 5):
        progress("fetch", done, 100)
    progress("load", 0, None)
    progress("load", 3, None)
    progress.close()
    assert stream.getvalue().splitlines() == ["fetch", "fetch 25%", "fetch 50%", "fetch 75%", "fetch 100%", "load"]


def test_a_terminal_gets_one_line_for_each_stage() -> None:
    """On a terminal the line of a stage is overwritten, and ends when the stage does."""
    stream = _Terminal()
    progress = ProgressLine(stream)
    progress("fetch", 0, 10)
    progress("fetch", 10, 10)
    for done in range(1, 50):
        progress("make tokens:", done, None)
    progress.close()
    progress.close()
    assert stream.getvalue().count("\n") == 2
    last_drawn = [line.split("\r\x1b[2K")[-1] for line in stream.getvalue().split("\n")]
    assert last_drawn == ["fetch 100%", "make tokens: 49", ""]
