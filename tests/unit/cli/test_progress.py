"""Progress on terminals, in notebooks, and where nobody looks; and when there are colours."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import structgen.progress as home
from structgen.cli.main import main
from structgen.cli.terminal import colours
from structgen.errors import ArgumentError
from structgen.progress import ProgressBar, shown, watched

VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says nothing of colours, and the terminal can move its cursor."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of progress bars; no thread draws meanwhile."""
    held = SimpleNamespace(now=100.0)
    monkeypatch.setattr(home, "monotonic", lambda: held.now)
    monkeypatch.setattr(home, "_TICK_S", 1e6)
    return held


def _last_drawn(text: str) -> list[str]:
    return [line.split("\r\x1b[2K")[-1] for line in text.split("\n")]


def test_files_and_pipes_get_nothing() -> None:
    """What is no terminal has no progress, and its text no codes."""
    stream = io.StringIO()
    with ProgressBar(stream) as bar:
        for done in range(0, 101, 5):
            bar("fetch", done, 100)
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_for_each_stage(clock: SimpleNamespace) -> None:
    """The line of a stage is drawn over, with a bar where the number of units is known, and ends with the stage."""
    stream = _Terminal()
    bar = ProgressBar(stream)
    bar("fetch", 0, 12)
    clock.now += 30
    bar("fetch", 3, 12)
    assert _last_drawn(stream.getvalue()) == [f"fetch [{6 * '#'}{18 * '-'}] 25%, 3 of 12, 90 s left"]
    bar("fetch", 12, 12, "no errors")
    for done in range(1, 50):
        bar("make tokens:", done, None)
    bar("weigh", 5_000_000, 10_000_000)
    bar.close()
    bar.close()
    assert _last_drawn(stream.getvalue()) == [
        f"fetch [{24 * '#'}] 100%, 12 of 12, no errors",
        "make tokens: 49",
        f"weigh [{12 * '#'}{12 * '-'}] 50%",
        "",
    ]


def test_a_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could not be drawn over."""
    monkeypatch.setenv("COLUMNS", "20")
    stream = _Terminal()
    with ProgressBar(stream) as bar:
        bar("a stage with a long name", 1, 9)
    assert all(len(line) < 20 for line in _last_drawn(stream.getvalue()))


def test_a_dumb_terminal_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line when the stage begins and for each quarter, without a code."""
    monkeypatch.setenv("TERM", "dumb")
    stream = _Terminal()
    with ProgressBar(stream) as bar:
        for done in range(1001):
            bar("fetch", done, 1000)
    written = stream.getvalue()
    assert len(written.splitlines()) <= 5
    assert written.splitlines()[-1].endswith("100%, 1000 of 1000")
    assert "\x1b" not in written
    assert "\r" not in written


def test_what_is_over_soon_is_not_shown(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With patience, a stage is drawn after that time and not before."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with watched("compile", always=True):
        clock.now += 1.9
    assert stream.getvalue() == ""
    bar = ProgressBar(stream, patience_s=2)
    bar("compile", 0, None)
    clock.now += 3
    bar("compile", 0, None)
    bar.close()
    assert _last_drawn(stream.getvalue()) == ["compile 3 s", ""]


def test_a_silent_stage_is_drawn_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds go on while nothing is reported, and stop when the bar is closed."""
    drawn = home.threading.Event()

    class _Watched(_Terminal):
        def flush(self) -> None:
            if self.getvalue().count("load") >= 3:
                drawn.set()

    monkeypatch.setattr(home, "_TICK_S", 0.001)
    stream = _Watched()
    bar = ProgressBar(stream)
    bar("load", 0, None)
    assert drawn.wait(60)
    bar.close()
    written = stream.getvalue()
    assert written.endswith("\n")
    assert bar._closed is None


def test_a_notebook_shows_an_output_that_goes_away(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is updated in place, is escaped, and nothing of it stays."""
    outputs: list[dict[str, str]] = []

    class _Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            outputs[-1] = bundle

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> _Handle:
        assert raw
        assert display_id
        outputs.append(bundle)
        return _Handle()

    display_module = SimpleNamespace(display=display)
    kernel = SimpleNamespace(kernel=object())
    fake = SimpleNamespace(get_ipython=lambda: kernel, display=display_module)
    monkeypatch.setitem(sys.modules, "IPython", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display_module)  # type: ignore[arg-type]
    with shown(progress=None) as report:
        report("fetch <b>", 0, 4)
        assert outputs == []
        clock.now += 2.5
        report("fetch <b>", 1, 4)
        (bundle,) = outputs
        assert 'value="0.2500"' in bundle["text/html"]
        assert "fetch &lt;b&gt; 25%" in bundle["text/html"]
        clock.now += 1
        report("fetch <b>", 3, 4)
        assert 'value="0.7500"' in outputs[0]["text/html"]
    assert outputs == [{"text/plain": "", "text/html": ""}]


def test_a_parameter_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """True is a bar, a callback is called, None and False are nothing outside notebooks; all else is refused."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    found: list[tuple[Any, ...]] = []
    for given in (None, False):
        with shown(progress=given) as report:
            report("a", 1, 2)
    assert stream.getvalue() == ""
    with shown(progress=lambda *told: found.append(told)) as report:
        report("b", 1, 2)
    assert found == [("b", 1, 2)]
    with shown(progress=True) as report:
        report("c", 1, 2)
    assert "c [####" in stream.getvalue()
    with pytest.raises(ArgumentError, match="progress: expected True, False or a callback"), shown(progress="yes"):  # type: ignore[arg-type]
        raise AssertionError("it is taken")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"NO_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "", "CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "0"}, None),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, False),
        ({"CLICOLOR": "0"}, False),
        ({"CLICOLOR": "1"}, None),
        ({"TERM": "dumb"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"CLICOLOR": "0", "CLICOLOR_FORCE": "1"}, True),
    ],
    ids=str,
)
def test_the_environment_says_whether_there_are_colours(
    variables: dict[str, str], expected: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As no-color.org, force-color.org and bixense.com/clicolors have it."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert colours() is expected


@pytest.mark.parametrize(
    ("variables", "colour"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
    ids=str,
)
def test_errors_and_help_have_colours_in_pipes_if_they_are_wanted(
    variables: dict[str, str], colour: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What goes into a pipe is plain, unless the environment wants colours."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["check", "no/such/file.json"]) == 2
    error = capsys.readouterr().err
    assert ("\x1b[31m\x1b[1merror:\x1b[0m no/such" in error) == colour
    assert ("\x1b" in error) == colour
    assert main(["check", "--help"]) == 0
    assert ("\x1b[1mGrammar" in capsys.readouterr().out) == colour


def test_terminals_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are dumb."""
    from structgen.cli.main import cli

    assert "\x1b[1m" in CliRunner().invoke(cli, ["--help"], color=True).output
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in CliRunner().invoke(cli, ["--help"], color=True).output
