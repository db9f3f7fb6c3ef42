"""``structgen run program.py:name`` on a model without weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from structgen.cli import run as run_module, run_program as program_file
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.models.toy.hash import HashModel

SOURCE = '''
from __future__ import annotations
from typing import Literal
from pydantic import BaseModel
import structgen as sg

class Point(BaseModel):
    x: int
    label: Literal["a", "b"]

@sg.program(max_tokens=60)
def point(text: str, times: int = 2, tags: list[str] = []) -> Point:
    """{text} {times} {tags}"""

@sg.program
def word(text: str) -> Literal["yes", "no"]:
    """{text}"""
'''
WISH = '{"x": 7, "label": "b"}'


@pytest.fixture
def file(tmp_path: Path, json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "points.py"
    path.write_text(SOURCE)
    monkeypatch.setattr(run_module, "model_of", lambda *_, **__: HashModel(json_vocabulary, writes=WISH))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["run", *arguments])
    written = capsys.readouterr()
    return status, written.out, written.err


def test_the_value_is_the_output(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, f"{file}:point", "--arg", "text=where?")
    assert (status, json.loads(out)) == (0, {"x": 7, "label": "b"})
    assert "forward passes" in err
    assert run(capsys, f"{file}:word", "--arg", "text=?")[1] in ("yes\n", "no\n")


def test_json_stream_and_trace(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"{file}:point", "--arg", "text=where?")
    line = json.loads(run(capsys, *arguments, "--json")[1])
    assert line["value"] == {"x": 7, "label": "b"}
    assert set(line["fields"]) == {"x", "label", ""}
    assert run(capsys, *arguments, "--stream")[1] == WISH + "\n"
    trace = tmp_path / "trace.json"
    assert run(capsys, *arguments, "--trace", str(trace))[0] == 0
    assert json.loads(trace.read_text())["arguments"] == {"text": "where?", "times": 2, "tags": []}


def test_a_trace_is_a_page(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    run(capsys, f"{file}:point", "--arg", "text=where?", "--trace", str(trace))
    held = json.loads(trace.read_text())
    assert main(["trace", str(trace)]) == 0
    page = capsys.readouterr().out.splitlines()
    steps = held["answers"][0]["steps"]
    assert page[0].startswith("program point on hash")
    shown = page[page.index(next(line for line in page if "chosen" in line)) + 1 :][: len(steps)]
    for step, line in zip(steps, shown, strict=True):
        assert json.dumps(step["text"]) in line or step["text"] is None
        assert ("forced" in line) == step["forced"]
        assert len(step["alternatives"]) <= 4
        total = sum(math.exp(each["logprob"]) for each in step["alternatives"]) + math.exp(step["logprob"])
        assert total <= 1 + 1e-9
    assert any(len(step["alternatives"]) == 4 for step in steps)
    assert page[-1] == 'value: {"x": 7, "label": "b"}'


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"structgen_trace": 2}', '{"structgen_trace": 1}', "[" * 100_000])
def test_what_is_no_trace(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert main(["trace", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_several_runs_are_sampled(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, f"{file}:point", "--arg", "text=?", "-n", "3", "--json")[1]
    assert [json.loads(line)["seed"] for line in out.splitlines()] == [0, 1, 2]


def test_arguments_are_read_as_their_types_say(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("from a file")
    trace = tmp_path / "trace.json"
    given = [f"text=@{text}", "times=3", 'tags=["a", "b"]']
    status, _, _ = run(
        capsys, f"{file}:point", *(part for item in given for part in ("--arg", item)), "--trace", str(trace)
    )
    assert status == 0
    assert json.loads(trace.read_text())["arguments"] == {"text": "from a file", "times": 3, "tags": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("", [], "it holds several programs; programs there are: point, word"),
        (":other", [], "no program 'other'"),
        (":point", [], "give --arg text=VALUE"),
        (":point", ["--arg", "txt=1"], "the name of a parameter; they are: text, times, tags"),
        (":point", ["--arg", "text=1", "--arg", "text=2"], "given twice"),
        (":point", ["--arg", "text=1", "--arg", "times=many"], "it is no int"),
        (":point", ["--arg", "text=@/nowhere/at/all"], "/nowhere/at/all"),
        (":point", ["--arg", "text=x", "--prompt", "y"], "has its own prompt"),
        (":point", ["--arg", "text=x", "--max-tokens", "2"], "shortest output"),
    ],
)
def test_unusable_input(
    file: str, name: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, file + name, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_files_that_do_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere_to_be_found")
    status, _, err = run(capsys, f"{broken}:f")
    assert status == 2
    assert "cannot be run; ModuleNotFoundError" in err
    assert "nowhere.py" in run(capsys, str(tmp_path / "nowhere.py"))[2]


def test_arguments_without_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    status, _, err = run(capsys, str(schema), "--arg", "a=1")
    assert status == 2
    assert "--arg is for programs" in err


def test_what_names_a_program() -> None:
    programs = ["a.py:b", "a.py", "x/a.py:b"]
    others = ["a.json", "a.json:b", "a.py:1", "-"]
    assert [path for path in programs + others if program_file.is_program(path)] == programs
