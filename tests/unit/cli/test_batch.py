"""``structgen batch``: rows for lines, however the run was ended, and in however many processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from docs_run import page_blocks, page_path

from structgen.cli import batch_file
from structgen.cli.batch_file import RowLog
from structgen.cli.main import main
from structgen.cli.terminal import Failure
from structgen.program.batch_row import COLUMNS, item_seed

JOB = '''
import os, time
import structgen as sg
from structgen.models import HashModel

class Slow(HashModel):
    def logits(self, state, matched):
        time.sleep(float(os.environ.get("PASS_S", "0")))
        return super().logits(state, matched)

def model():
    return Slow(sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0]), max_context=4000)

def no_model():
    return "a model"

def dies_at_load():
    os._exit(3)

@sg.program(sampler=sg.Multinomial())
def choose(text: str, count: int = 4):
    yield text
    if text == "die":
        os.kill(os.getpid(), 9)
    if text == "exit":
        raise SystemExit(3)
    if text == "fail":
        raise RuntimeError("on purpose")
    return {"word": (yield sg.regex("[a-z]{%d}" % count))}

@sg.program
def two(one: str, other: str) -> int:
    """{one} {other}"""
'''

LONG = '''
from typing import Annotated
import structgen as sg
from pydantic import BaseModel, Field

class Long(BaseModel):
    name: Annotated[str, Field(min_length=4, max_length=300)]

@sg.program
def long(text: str) -> Long:
    """{text}"""
'''

Rows = dict[Any, dict[str, Any]]
Run = Callable[..., "tuple[int, Rows, str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    return tmp_path


def write_lines(lines: list[Any], name: str = "in.jsonl") -> None:
    Path(name).write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def rows_of(name: str = "out.jsonl", key: str = "id") -> Rows:
    """The rows of a file by their ids; each is there once."""
    found = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]
    rows = {row[key]: row for row in found}
    assert len(rows) == len(found)
    return rows


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program ``choose`` in this process; status, rows by id, and notes."""

    def run(
        *arguments: str, program: str = "job.py:choose", source: str = "in.jsonl", output: str = "out.jsonl"
    ) -> tuple[int, Rows, str]:
        status = main(["batch", program, source, output, "--model", "job.py:model", *arguments])
        out, err = capsys.readouterr()
        assert out == ""
        return status, rows_of() if Path("out.jsonl").exists() else {}, err

    return run


def plain_lines(count: int) -> list[Any]:
    return [{"id": f"n{number}", "args": {"text": f"word {number}"}} for number in range(count)]


def test_rows_are_what_single_runs_return(run: Run) -> None:
    """A row has the value of a run of its own, with the seed that follows from the id."""
    import structgen as sg
    from structgen.models import HashModel

    write_lines([{"id": "a", "args": {"text": "one"}}, {"id": 7, "args": {"text": "two", "count": 6}, "seed": 3}])
    status, rows, err = run("--seed", "5")
    assert status == 0
    assert "2 lines: 2 done, 0 failed, 0 left" in err
    names: dict[str, Any] = {}
    exec(JOB, names)
    model = HashModel(sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0]), max_context=4000)
    alone = names["choose"].run("one", model=model, seed=item_seed(5, "a"))
    tokens = len(alone.outcomes[0].result.tokens)
    assert rows["a"] == dict(zip(COLUMNS, ("a", alone.value, None, [], tokens, 1), strict=True))
    assert rows[7]["value"] == names["choose"]("two", 6, model=model, seed=3)
    assert all(tuple(row) == COLUMNS for row in rows.values())


def test_failures_are_rows(run: Run) -> None:
    """Lines that cannot be used, arguments of another type, and errors; the status is 1, and the others go on."""
    write_lines(
        [
            {"args": {"text": "good"}},
            "{",
            {"args": {"text": "fail"}},
            {"args": {"text": "x", "count": "many"}},
            {"args": {"words": "x"}},
            {"id": "e", "args": {"text": "x"}, "meta": 1},
            {"args": {"text": "x"}, "max_tokens": 1},
            {"args": {"text": "exit"}},
        ]
    )
    status, rows, err = run("--batch-size", "2", "--attempts", "3")
    assert status == 1
    assert "8 lines: 1 done, 7 failed, 0 left" in err
    assert "note: the first error: in.jsonl:" in err
    assert rows[0]["error"] is None
    wanted = {
        1: "in.jsonl:2: not valid JSON",
        2: "in.jsonl:3: RuntimeError: on purpose",
        3: 'in.jsonl:4: "args": count: ',
        4: "in.jsonl:5: \"args\": there is no 'words'",
        "e": 'in.jsonl:6: there is no "meta"; there are args, id, max_tokens, seed; '
        'the arguments of the program go into "args"',
        6: "in.jsonl:7: max_tokens=1: the shortest output",
        7: "in.jsonl:8: SystemExit: 3",
    }
    for key, error in wanted.items():
        assert rows[key]["error"].startswith(error)
        assert rows[key]["value"] is None
        assert rows[key]["attempt"] == (3 if key in (2, 6, 7) else 1)


def test_what_a_value_lacks_is_in_its_row(run: Run, folder: Path) -> None:
    """A value that the budget cut is marked."""
    Path("long.py").write_text(LONG)
    write_lines([{"args": {"text": "x"}}])
    _, rows, _ = run("--max-tokens", "20", program="long.py")
    assert rows[0]["error"] is None
    assert rows[0]["losses"] == ["name: cut by max_tokens"]


def test_plain_lines_are_the_only_argument(run: Run) -> None:
    write_lines(["first", "", "second"], "in.txt")
    status, rows, _ = run(source="in.txt")
    assert status == 0
    assert rows.keys() == {0, 1}
    Path("out.jsonl").unlink()
    status, _, err = run(source="in.txt", program="job.py:two")
    assert status == 2
    assert "the program takes several" in err


def test_the_example_of_the_page_runs(run: Run) -> None:
    """The program of docs/guides/batch.md, over the lines that the page writes."""
    (program,) = page_blocks("guides/batch.md")
    Path("contact.py").write_text(program)
    (written,) = re.findall(r"^\$ (printf .* > in\.txt)$", page_path("guides/batch.md").read_text(), re.MULTILINE)
    subprocess.run(["bash", "-c", written], check=True)
    status, rows, err = run(program="contact.py:contact", source="in.txt")
    assert (status, err) == (0, "2 lines: 2 done, 0 failed, 0 left\n")
    assert all(re.fullmatch("[0-9 ]{3,12}", rows[index]["value"]["phone"]) for index in (0, 1))
    status, rows, err = run("--resume", program="contact.py:contact", source="in.txt")
    assert err == "2 lines: 2 done, 0 failed, 0 left; 2 of these rows are from an earlier run\n"


@pytest.mark.parametrize(
    ("lines", "arguments", "said"),
    [
        ([{"id": 1, "args": {}}, {"args": {}}], {}, "in.jsonl: lines 1 and 2 have the same id 1"),
        ([{"id": "a"}, {"id": "b"}, {"id": "a"}], {}, "in.jsonl: lines 1 and 3 have the same id 'a'"),
        ([], {"source": "none.jsonl"}, "none.jsonl"),
        ([], {"source": "-"}, "IN is read twice"),
        ([], {"output": "-"}, "OUT is locked and taken up, so it cannot be standard output"),
        ([], {"program": "other.py"}, "other.py"),
        ([], {"program": "in.jsonl"}, "in.jsonl: expected a program, FILE.py:NAME"),
        ([], {"more": ["--retry"]}, "--retry goes on with the rows of OUT: add --resume"),
        ([], {"more": ["--model-name", "x"]}, "--model-name is for a server"),
        ([{"args": {}}], {"more": ["--model", "job.py:no_model"]}, "--model job.py:no_model"),
        ([{"args": {}}], {"more": ["--model", "job.py:none"]}, "expected FILE.py:NAME, with a function NAME"),
        ([{"args": {}}], {"more": ["--model", "http://localhost:1/v1"]}, "add --model-name NAME"),
    ],
)
def test_unusable_input_is_refused(run: Run, lines: list[Any], arguments: dict[str, Any], said: str) -> None:
    """With status 2, before anything is run."""
    write_lines(lines)
    more = arguments.pop("more", [])
    status, rows, err = run(*more, **arguments)
    assert status == 2
    assert said in err
    assert not rows
    assert not Path("-").exists()


def test_a_file_with_rows_is_kept_unless_it_is_taken_up(run: Run) -> None:
    """Rows are not run again, errors only with ``--retry``; and the status tells of all rows."""
    write_lines([*plain_lines(3), {"id": "bad", "args": {"text": "fail"}}])
    assert run()[0] == 1
    first = Path("out.jsonl").read_bytes()
    status, _, err = run()
    assert status == 2
    assert "out.jsonl: it exists; add --resume" in err
    write_lines([*plain_lines(5), {"id": "bad", "args": {"text": "good now"}}])
    status, rows, err = run("--resume")
    assert status == 1
    assert "6 lines: 5 done, 1 failed, 0 left; 4 of these rows are from an earlier run" in err
    assert Path("out.jsonl").read_bytes().startswith(first)
    write_lines(plain_lines(2))  # a failed row of another line is none of theirs, but the file holds it
    status, _, err = run("--resume")
    assert status == 1
    assert "2 lines: 2 done, 0 failed, 0 left; 2 of these rows are from an earlier run" in err
    write_lines([*plain_lines(5), {"id": "bad", "args": {"text": "good now"}}])
    status, rows, _ = run("--resume", "--retry")
    assert status == 0
    assert rows.keys() == {*(f"n{number}" for number in range(5)), "bad"}
    assert [path.name for path in Path().glob(".*.part")] == []
    status, again, _ = run("--resume")
    assert (status, again) == (0, rows)


@pytest.mark.parametrize(
    "content", ['{"id": 1, "value"', '{"id": 1}\n{"i', '{"id": 1}\n\0\0\0', '{"id": 1}\n{"id": 2\0\0']
)
def test_torn_ends_are_cut_off(folder: Path, content: str) -> None:
    Path("out.jsonl").write_text(content)
    with RowLog("out.jsonl", resume=True, retry=False, key="id", is_error=lambda _: False) as log:
        log.write({"id": "new"})
    kept = content[: content.rfind("\n") + 1]
    assert Path("out.jsonl").read_text() == kept + '{"id": "new"}\n'
    assert log.finished == ({1, "new"} if kept else {"new"})


@pytest.mark.parametrize(
    "content",
    ["my notes", "my notes\n", '{"id": 1}\n{"name": "x"}\n', '{"custom_id": "a"}\n', '{"id": 1}\nnotes', "[1]\n"],
)
@pytest.mark.parametrize("retry", [False, True])
def test_other_files_are_not_touched(folder: Path, content: str, retry: bool) -> None:
    """What is no row is refused with its line, and stays."""
    Path("out.jsonl").write_text(content)
    with pytest.raises(Failure, match=r"out\.jsonl:[12]: it is no row that structgen batch wrote"):
        RowLog("out.jsonl", resume=True, retry=retry, key="id", is_error=lambda _: False)
    assert Path("out.jsonl").read_text() == content
    assert [path.name for path in Path().glob(".*.part")] == []


def test_any_cut_of_the_file_is_taken_up(run: Run) -> None:
    """Wherever its end is lost, the file ends with the same rows."""
    write_lines([*plain_lines(6), {"id": "é", "args": {"text": "fail"}}])
    _, whole, _ = run()
    data = Path("out.jsonl").read_bytes()
    for length in Random(1).sample(range(1, len(data)), 12):
        Path("out.jsonl").write_bytes(data[:length])
        assert run("--resume")[1] == whole
        assert Path("out.jsonl").read_bytes()[:length].startswith(data[: data.rfind(b"\n", 0, length) + 1])


@pytest.mark.skipif(batch_file.fcntl is None, reason="this system has no flock")
@pytest.mark.parametrize("retry", [False, True])
def test_two_runs_do_not_write_one_file(run: Run, retry: bool) -> None:
    write_lines(plain_lines(1))
    Path("out.jsonl").write_text('{"id": "old", "value": 1, "error": null, "losses": [], "tokens": 1, "attempt": 1}\n')
    with RowLog("out.jsonl", resume=True, retry=retry, key="id", is_error=lambda _: False):
        status, _, err = run("--resume")
        assert status == 2
        assert "another process writes it" in err
    status, _, err = run("--resume")
    assert status == 0
    assert "note: OUT has 1 rows of ids that IN has not" in err


def test_seeds_follow_from_ids() -> None:
    """They differ by seed, id, kind of id and attempt, and fit any reader of JSON and any generator."""
    seeds = [item_seed(seed, key, attempt) for seed in (0, 1) for key in (1, "1", "a", 2) for attempt in (1, 2)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << 56 for seed in seeds)
    assert item_seed(0, "a") == item_seed(0, "a", 1)


def start(*arguments: str, pass_s: float = 0.002) -> subprocess.Popen[str]:
    """Run the command in a process of its own, slowly."""
    command = [sys.executable, "-m", "structgen.cli", "batch", "job.py:choose", "in.jsonl", "out.jsonl"]
    return subprocess.Popen(
        [*command, "--model", "job.py:model", "--resume", "--batch-size", "2", *arguments],
        env={**os.environ, "PASS_S": str(pass_s), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def signalled(process: subprocess.Popen[str], number: int, *, at: int) -> tuple[int, str]:
    """Send a signal once the file has so many bytes; the status, and what was said."""
    path = Path("out.jsonl")
    while process.poll() is None and (not path.exists() or path.stat().st_size < at):
        sleep(0.001)
    if process.poll() is None:
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_a_killed_run_is_taken_up(run: Run, workers: str) -> None:
    """SIGKILL at random places; in the end each line has the row of a run that nobody killed."""
    write_lines([*plain_lines(24), {"id": "bad", "args": {"text": "fail"}}])
    _, whole, _ = run("--batch-size", "3")
    size = Path("out.jsonl").stat().st_size
    Path("out.jsonl").unlink()
    choices = Random(int(workers))
    cuts = sorted(choices.randrange(1, size * 3 // 4) for _ in range(2))
    statuses = [signalled(start("--workers", workers), signal.SIGKILL, at=cut)[0] for cut in cuts]
    assert -signal.SIGKILL in statuses
    before = Path("out.jsonl").read_bytes()
    status, rows, err = run("--resume", "--workers", workers)
    assert status == 1
    assert rows == whole
    assert "of these rows are from an earlier run" in err
    assert Path("out.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.exhaustive), "2"])
def test_ctrl_c_ends_the_command(run: Run, workers: str) -> None:
    """All processes of the terminal get the signal; the status is 130, and what is said is one line."""
    write_lines(plain_lines(200))
    status, said = signalled(start("--workers", workers, pass_s=0.01), signal.SIGINT, at=1)
    assert status == 130
    assert "Traceback" not in said
    told = re.search(
        r"interrupted: 200 lines: (\d+) done, 0 failed, (\d+) left; --resume goes on", said.splitlines()[-1]
    )
    assert told is not None
    counted, left = map(int, told.groups())
    assert counted + left == 200
    assert len(rows_of()) - counted in (0, 1)  # the signal may come after a row is written and before it is counted


def test_a_line_that_ends_its_process_fails_alone(run: Run) -> None:
    """Lines beside it have the rows of a run without it."""
    lines = plain_lines(9)
    write_lines(lines)
    _, whole, _ = run()
    Path("out.jsonl").unlink()
    write_lines([*lines[:4], {"id": "bad", "args": {"text": "die"}}, *lines[4:]])
    status, rows, _ = run("--workers", "2", "--batch-size", "2")
    assert status == 1
    bad = rows.pop("bad")
    assert bad["error"] == "in.jsonl:5: the process that ran it ended with SIGKILL, as did the one before it"
    assert bad["attempt"] == 2
    assert rows == whole


@pytest.mark.parametrize(
    ("model", "status", "said"),
    [("dies_at_load", 1, "a process ended with status 3 while it loaded the model"), ("no_model", 2, "--model job.py")],
)
def test_processes_that_cannot_load_the_model(run: Run, model: str, status: int, said: str) -> None:
    write_lines(plain_lines(4))
    found, rows, err = run("--workers", "2", "--model", f"job.py:{model}")
    assert found == status
    assert said in err
    assert not rows
