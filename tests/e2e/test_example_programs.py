"""The programs under examples/ run on the embedded model."""

from __future__ import annotations

import importlib
import os
import pty
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"
SHOWN = {
    "agent.py": "answer: ",
    "batch.py": "id,item,quantity,needed\n1,",
    "classify.py": "%)  It arrived on Tuesday.",
    "contact.py": "name: probability ",
    "evidence.py": "approved=",
    "report.py": "# honey bees\n* ",
    "streaming.py": "urgency = '",
}
LONG = ["agent.py", "evidence.py", "report.py"]
READ = ["chess.py", "invoice.py", "sql.py", "terminal.py", "thought.py"]  # other tests read their output

pytestmark = pytest.mark.model


def _run(name: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a program; it ends without an error."""
    if not FOLDER.is_dir():
        pytest.skip(f"the examples are not beside the tests: no {FOLDER}")
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr
    return done


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def test_all_are_run() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"the examples are not beside the tests: no {FOLDER}")
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted([*SHOWN, *READ])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LONG else ()) for name in SHOWN]
)
def test_an_example_runs(name: str) -> None:
    """It runs within a minute, and shows what it is about."""
    assert SHOWN[name] in _run(name).stdout


@pytest.mark.nightly
def test_moves_of_the_chess_game_are_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves that are shown, made one after the other, lead to the board that is shown."""
    written = _run("chess.py").stdout
    note = r"given|probability [01]\.\d\d among (\d+) legal moves"
    moves = re.findall(rf"^\d+\.(?:\.\.)? (\S+) +({note})$", written, re.MULTILINE)
    assert len(moves) == 8
    board = _module("support.chess_rules", monkeypatch).Board.of()
    for name, shown, count in moves:
        legal = board.moves()
        assert shown == "given" or int(count) == len(legal)
        board = board.after(legal[name])
    assert written.endswith(f"\n{board}\n")


def test_queries_are_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that are shown are those of the queries that are shown."""
    written = _run("sql.py").stdout
    program = _module("sql", monkeypatch)
    library = program.open_library()
    found = re.findall(r"^(\S.*)\n  (SELECT .*)\n((?:   \| .*\n)*)   \((\d+) rows\)$", written, re.MULTILINE)
    assert [question for question, *_ in found] == program.QUESTIONS
    for _, query, shown, count in found:
        rows = library.execute(query).fetchall()
        assert int(count) == len(rows)
        assert shown == "".join(f"   | {' | '.join(map(str, row))}\n" for row in rows[:5])


@pytest.mark.nightly
def test_the_lines_of_the_invoice_add_up() -> None:
    written = _run("invoice.py").stdout
    lines = re.findall(r"^ *(\d+) .* (\d+\.\d\d) +(\d+\.\d\d)$", written, re.MULTILINE)
    total = re.search(r"^total +(?:EUR|USD|SEK) +(\d+\.\d\d)$", written, re.MULTILINE)
    assert lines
    assert total is not None
    assert sum(int(count) * Decimal(price) for count, price, _ in lines) == Decimal(total[1])
    assert all(int(count) * Decimal(price) == Decimal(amount) for count, price, amount in lines)
    assert re.search(r"^invoice [A-Z]{2}-\d{4}, issued \d\d [A-Z][a-z]+ \d{4}, due ", written, re.MULTILINE)


@pytest.mark.nightly
def test_the_form_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe there is a line for each final field; on a terminal the form is redrawn, at last with all fields."""
    names = list(_module("terminal", monkeypatch).Request.model_fields)
    *lines, value = _run("terminal.py").stdout.splitlines()
    assert [line.split()[1] for line in lines] == names
    assert value == " ".join(f"{line.split()[1]}={line.split(maxsplit=2)[2]}" for line in lines).replace("[x] ", "")

    here, there = pty.openpty()  # it holds what the program writes, a few kilobytes
    _run("terminal.py", stdout=there)
    os.close(there)
    drawn = b""
    while True:
        try:
            piece = os.read(here, 1 << 16)
        except OSError:  # how a terminal reports its end
            break
        if not piece:
            break
        drawn += piece
    os.close(here)
    frames = drawn.decode().replace("\r\n", "\n").split(f"\x1b[{len(names)}F")[1:]
    assert len(frames) > len(names), "values are seen growing"
    assert frames[0].count("[x]") == 0
    assert frames[-1].replace("\x1b[2K", "").splitlines() == [*lines, value]


@pytest.mark.nightly
def test_thoughts_come_before_answers() -> None:
    """The counts are those of the answers that are shown."""
    written = _run("thought.py").stdout
    found = re.findall(
        r"^  thought: [A-Z].*\.\n  answer: (\d+); without the thought: (\d+); right: (\d+)$", written, re.MULTILINE
    )
    assert len(found) == 2
    for way, at in (("with the thought", 0), ("without it", 1)):
        right = sum(answers[at] == answers[2] for answers in found)
        assert f"\n{way}: {right} of {len(found)} right\n" in written
