"""``structgen run --prompts``: rows, their order and errors, and going on after an interruption."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from structgen.cli import run as run_module, run_canvas as canvas_module, run_prompts
from structgen.cli.main import cli, main
from structgen.decode.step.context import Context
from structgen.engine import Vocabulary
from structgen.models import HashModel
from structgen.models.toy.hash import HashDiffusion

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROGRAM = '''
from datetime import date
from typing import Literal
import structgen as sg

@sg.program
def choose(text: str, when: date = date(2024, 1, 1)) -> Literal["yes", "no"]:
    """{text} {when:%d/%m}"""

@sg.program
def two(one: str, other: str) -> Literal["yes", "no"]:
    """{one} {other}"""
'''

LIMITED = r"""
import structgen as sg

@sg.program(limits=sg.Limits(steps=1000))
def maze(text: str):
    yield text
    return (yield sg.regex("x" if text == "b" else "x(?:(?:[ab]{1,63}c?){1,99}d?){1,99}"))
"""

Rows = list[dict[str, Any]]
Outcome = tuple[int, Rows, str]


class _Recorder(HashModel):
    """Notes the prompts that it encodes, and how many sequences each forward pass extends."""

    prompts: list[Any]
    passes: list[int]

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        self.prompts.append(prompt)
        return super().encode_prompt(prompt, chat=chat)

    def extend_many(self, extensions: Any, /) -> Any:
        self.passes.append(len(extensions))
        return super().extend_many(extensions)


@pytest.fixture
def model(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> _Recorder:
    """The model that the command runs."""
    model = _Recorder(json_vocabulary)
    model.prompts, model.passes = [], []
    monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: model)
    return model


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


@pytest.fixture
def rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Write the lines to a file, run the command on it, and return exit status, rows by index, and notes."""

    def run(file: str, lines: list[Any] | str, *arguments: str, suffix: str = ".jsonl") -> Outcome:
        path = tmp_path / f"in{suffix}"
        text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
        path.write_text(text, encoding="utf-8")
        status = main(["run", file, "--prompts", str(path), *arguments])
        out, err = capsys.readouterr()
        if "-o" in arguments:
            assert out == ""
            out = Path(arguments[arguments.index("-o") + 1]).read_text(encoding="utf-8")
        found = [json.loads(line) for line in out.splitlines()]
        return status, sorted(found, key=lambda row: int(row["index"])), err

    return run


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("batch_size", ["1", "3"])
def test_rows_are_what_single_runs_write(
    rows: Callable[..., Outcome], schema: str, capsys: pytest.CaptureFixture[str], batch_size: str
) -> None:
    """Row i has the members of ``--json`` of a run of its own with seed S + i, however many share a pass."""
    prompts = ["Who?", "And who else?", "Anyone?", "Ada"]
    options = ("--temperature", "1", "--drafter", "none")
    status, found, _ = rows(
        schema, [{"prompt": each} for each in prompts], *options, "--seed", "5", "--batch-size", batch_size
    )
    assert status == 0
    for index, (prompt, row) in enumerate(zip(prompts, found, strict=True)):
        assert main(["run", schema, "--prompt", prompt, "--json", *options, "--seed", str(5 + index)]) == 0
        alone = json.loads(capsys.readouterr().out)
        assert row.keys() == {"index", *alone}
        assert row["index"] == index
        for name in ("text", "value", "tokens", "seed", "finish_reason"):
            assert row[name] == alone[name]
        assert row["logprob"] == pytest.approx(alone["logprob"])
    assert len({row["text"] for row in found}) == len(prompts)


def test_lines_share_forward_passes(rows: Callable[..., Outcome], schema: str, model: _Recorder) -> None:
    """With a batch size of N, N sequences are extended in one pass while N lines are left, and never more."""
    lines = [{"prompt": f"Who is {index}?"} for index in range(6)]
    _, found, _ = rows(schema, lines, "--batch-size", "3", "--drafter", "none")
    assert max(model.passes) == 3
    forwards = sum(row["stats"]["forwards"] for row in found)
    assert len(model.passes) < forwards / 2
    model.passes.clear()
    rows(schema, lines, "--batch-size", "1", "--drafter", "none")
    assert not model.passes  # each sequence is extended by itself


def test_members_of_a_line(rows: Callable[..., Outcome], schema: str, model: _Recorder) -> None:
    """A line has its own prompt, message of the system, seed and budget; ``id`` and ``meta`` are copied."""
    messages = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Hm"}]
    own = [{"role": "system", "content": "mine"}, {"role": "user", "content": "Who?"}]
    status, found, _ = rows(
        schema,
        [
            {"prompt": "Who?", "id": "a", "meta": {"label": [1]}, "seed": 9, "max_tokens": 60},
            {"prompt": "Who?", "system": "brief"},
            {"prompt": messages},
            {"prompt": own},
        ],
        *("--system", "all", "--temperature", "1", "--batch-size", "1"),
    )
    assert status == 0
    assert (found[0]["id"], found[0]["meta"], found[0]["seed"]) == ("a", {"label": [1]}, 9)
    assert "id" not in found[1]
    assert found[1]["seed"] == 1
    user = {"role": "user", "content": "Who?"}
    assert model.prompts == [
        [{"role": "system", "content": "all"}, user],
        [{"role": "system", "content": "brief"}, user],
        [{"role": "system", "content": "all"}, *messages],
        own,
    ]


def test_plain_lines_are_prompts(rows: Callable[..., Outcome], schema: str, model: _Recorder) -> None:
    """Each line of a text file is a prompt; blank lines are left out."""
    status, found, _ = rows(schema, "Who?\n\n  And who?\r\n", "--batch-size", "1", suffix=".txt")
    assert status == 0
    assert [row["index"] for row in found] == [0, 1]
    assert model.prompts == ["Who?", "  And who?"]


@pytest.mark.usefixtures("model")
def test_errors_are_rows(rows: Callable[..., Outcome], schema: str) -> None:
    """A line that cannot be used or fails is a row with an error that names its line; the others are written."""
    lines = [
        "{",
        '"text"',
        '{"prompt": 3, "id": "c"}',
        '{"prompt": "Who?", "max_token": 3}',
        "{}",
        '{"prompt": "Who?", "max_tokens": 1}',
        '{"prompt": [{"role": "user"}]}',
        '{"prompt": [{"role": "system", "content": "x"}], "system": "y"}',
        '{"prompt": "Who?", "id": true}',
        '{"prompt": "Who?", "seed": -1}',
        "",
        '{"prompt": "Who?"}',
    ]
    status, found, err = rows(schema, "\n".join(lines))
    assert status == 1
    errors = [row.get("error") for row in found]
    assert [":".join(str(error).split(":")[1:2]) for error in errors[:-1]] == [str(number) for number in range(1, 11)]
    for error, words in zip(
        errors,
        [
            "not valid JSON",
            'an object with "prompt"; found "text"',
            '"prompt" must be a text or a list of messages; found 3',
            "there is no \"max_token\"; is 'max_tokens' meant? there are prompt",
            'it has no "prompt"',
            "allow at least max_tokens=",
            "message 0 is malformed",
            "leave one out",
            '"id" must be',
            '"seed" must be',
        ],
        strict=False,
    ):
        assert words in str(error)
    assert errors[-1] is None
    assert found[2]["id"] == "c"
    assert err.splitlines()[-1] == "11 lines: 1 done, 10 failed, 0 left"


@pytest.mark.usefixtures("model")
def test_a_line_that_is_not_utf8_is_an_error(schema: str, tmp_path: Path) -> None:
    """The byte is named, and the other lines are written."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n{"prompt": "Who?"}\n')
    result = CliRunner().invoke(cli, ["run", schema, "--prompts", str(path)], standalone_mode=False)
    found = {row["index"]: row for row in map(json.loads, result.stdout.splitlines())}
    assert "0xff" in found[0]["error"]
    assert "text" in found[1]


@pytest.mark.usefixtures("model")
def test_prompts_from_standard_input(
    schema: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``-`` is JSON lines on standard input, which the description cannot be at the same time."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "Who?"}\n')))
    assert main(["run", schema, "--prompts", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["index"] == 0
    assert main(["run", "-", "--prompts", "-"]) == 2


# going on


def test_resume_runs_what_is_missing_or_failed(
    rows: Callable[..., Outcome], schema: str, model: _Recorder, tmp_path: Path
) -> None:
    """Finished rows stay as they are, byte for byte; errors and a torn last line are written again."""
    out = tmp_path / "out.jsonl"
    lines: list[Any] = [{"prompt": f"Who is {index}?", "id": f"row {index}"} for index in range(3)]
    lines += [{"prompt": "Who?", "max_tokens": 1}, {"prompt": "And who?"}]
    status, found, _ = rows(schema, lines, "-o", str(out), "--batch-size", "1")
    assert status == 1
    kept = {row.get("id", row["index"]): line for line in out.read_text().splitlines() if (row := json.loads(line))}
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 40])  # the last row, torn
    model.prompts.clear()
    lines[3]["max_tokens"] = 80
    again_status, again, err = rows(schema, lines, "-o", str(out), "--batch-size", "1", "--resume")
    assert again_status == 0
    assert model.prompts == ["Who?", "And who?"]
    assert [row["index"] for row in again] == list(range(5))
    assert not any("error" in row for row in again)
    now = {row.get("id", row["index"]): line for line in out.read_text().splitlines() if (row := json.loads(line))}
    for index in range(3):
        assert now[f"row {index}"] == kept[f"row {index}"]
    assert again[4]["text"] == found[4]["text"]
    assert err.splitlines()[-1] == "5 lines: 5 done, 0 failed, 0 left; 3 of these rows are from an earlier run"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_resume_goes_by_id(rows: Callable[..., Outcome], schema: str, model: _Recorder, tmp_path: Path) -> None:
    """Lines with ids may move; new ones are run."""
    out = str(tmp_path / "out.jsonl")
    rows(schema, [{"prompt": "a", "id": 1}, {"prompt": "b", "id": 2}], "-o", out)
    model.prompts.clear()
    lines = [{"prompt": "c", "id": 3}, {"prompt": "b", "id": 2}, {"prompt": "a", "id": 1}]
    status, found, _ = rows(schema, lines, "-o", out, "--resume")
    assert status == 0
    assert model.prompts == ["c"]
    assert sorted(row["id"] for row in found) == [1, 2, 3]


def test_resume_with_nothing_left_loads_no_model(
    rows: Callable[..., Outcome], schema: str, model: _Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If all rows are there, nothing is loaded and nothing is written."""
    out = tmp_path / "out.jsonl"
    rows(schema, [{"prompt": "a"}], "-o", str(out))
    before = out.read_bytes()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(run_module, "model_of", refuse)
    assert rows(schema, [{"prompt": "a"}], "-o", str(out), "--resume")[0] == 0
    assert out.read_bytes() == before


@pytest.mark.usefixtures("model")
def test_an_interrupted_run_keeps_its_rows(
    rows: Callable[..., Outcome], schema: str, model: _Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends with status 130; the finished rows are in the file, and ``--resume`` writes the others."""
    out = tmp_path / "out.jsonl"
    lines = [{"prompt": f"Who is {index}?"} for index in range(12)]
    write, written = run_prompts._RowFile.write, 0

    def interrupted(self: Any, row: dict[str, Any]) -> None:
        nonlocal written
        if written == 5:
            raise KeyboardInterrupt
        written += 1
        write(self, row)

    monkeypatch.setattr(run_prompts._RowFile, "write", interrupted)
    status, found, err = rows(schema, lines, "-o", str(out), "--batch-size", "4")
    assert (status, len(found)) == (130, 5)
    assert "interrupted: 12 lines: 5 done, 0 failed, 7 left; --resume goes on" in err
    monkeypatch.setattr(run_prompts._RowFile, "write", write)
    status, found, _ = rows(schema, lines, "-o", str(out), "--resume")
    assert status == 0
    assert [row["index"] for row in found] == list(range(12))


@pytest.mark.usefixtures("model")
def test_files_are_not_overwritten(rows: Callable[..., Outcome], schema: str, tmp_path: Path) -> None:
    """A file with rows, or with anything else, is left as it is."""
    out = tmp_path / "out.jsonl"
    out.write_text('{"index": 0, "text": "x"}\nnotes\n')
    before = out.read_bytes()
    for more, words in (((), "it exists; add --resume"), (("--resume",), "out.jsonl:2: it is no row")):
        path = tmp_path / "in.jsonl"
        path.write_text('{"prompt": "a"}\n')
        result = CliRunner().invoke(
            cli, ["run", schema, "--prompts", str(path), "-o", str(out), *more], standalone_mode=False
        )
        assert words in str(result.exception)
        assert out.read_bytes() == before


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "x"], "--prompt is not for --prompts"),
        (["--stream"], "--stream is not for --prompts"),
        (["--weights"], "--weights is not for --prompts"),
        (["-n", "3"], "-n is for one prompt"),
        (["--resume"], "--resume goes on with a file"),
    ],
)
def test_options_of_one_prompt_are_refused(schema: str, tmp_path: Path, arguments: list[str], words: str) -> None:
    """Options that make no sense for many prompts are refused before anything is run."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n')
    result = CliRunner().invoke(cli, ["run", schema, "--prompts", str(path), *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("model")
def test_ids_that_occur_twice_are_refused(schema: str, tmp_path: Path) -> None:
    """``--resume`` goes by the ids, so they must differ."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n')
    result = CliRunner().invoke(cli, ["run", schema, "--prompts", str(path)], standalone_mode=False)
    assert "in.jsonl:2: its id 'x' is also that of" in str(result.exception)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(_Terminal(), "3 of 4"), (io.StringIO(), "")])
def test_progress_is_for_terminals(stream: io.StringIO, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar counts the lines, those of an earlier run included; in a pipe there is none."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with run_prompts._progress(4, 2) as advance:
        advance()
    assert shown in stream.getvalue()
    assert bool(stream.getvalue()) == bool(shown)


# programs and canvases


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "programs.py"
    path.write_text(PROGRAM)
    return str(path)


def test_arguments_of_a_program(rows: Callable[..., Outcome], program: str, model: _Recorder) -> None:
    """A line holds the arguments by name, read as their annotations say."""
    status, found, _ = rows(
        f"{program}:choose",
        [
            {"args": {"text": "a", "when": "2024-05-17"}, "id": 1},
            {"args": {"text": "b", "when": "soon"}},
            {"args": {"txt": "c"}},
            {"args": {}},
            {"prompt": "d"},
        ],
        *("--batch-size", "1"),
    )
    assert status == 1
    assert found[0]["value"] in ("yes", "no")
    assert found[0]["id"] == 1
    assert "17/05" in str(model.prompts[0])
    words = ["when: ", "there is no 'txt'", "'text' is missing", 'there is no "prompt"']
    for row, word in zip(found[1:], words, strict=True):
        assert word in row["error"]


@pytest.mark.usefixtures("model")
def test_a_limit_in_the_middle_leaves_a_partial_text(rows: Callable[..., Outcome], tmp_path: Path) -> None:
    """The row is an error all the same, and the others go on."""
    path = tmp_path / "limited.py"
    path.write_text(LIMITED)
    status, found, _ = rows(f"{path}:maze", [{"args": {"text": "a"}}, {"args": {"text": "b"}}])
    assert status == 1
    by_index = {row["index"]: row for row in found}
    assert "steps=1000" in by_index[0]["error"]
    assert by_index[0]["partial"].startswith("x")
    assert "value" not in by_index[0]
    assert by_index[1]["value"] == "x"


@pytest.mark.usefixtures("model")
def test_plain_lines_are_the_only_argument(rows: Callable[..., Outcome], program: str) -> None:
    """Where one argument is needed, a text file holds it line by line; where two are, it is refused."""
    status, found, _ = rows(f"{program}:choose", "a\nb\n", suffix=".txt")
    assert (status, len(found)) == (0, 2)
    status, found, err = rows(f"{program}:two", "a\nb\n", suffix=".txt")
    assert (status, found) == (2, [])
    assert "the program takes several" in err


def test_canvases(
    rows: Callable[..., Outcome], schema: str, json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of canvases are what a single run writes, too."""
    tokens = [*json_vocabulary.tokens, b""]
    masked = Vocabulary(tokens, eos=json_vocabulary.eos, special={json_vocabulary.size: "<mask>"})
    model = HashDiffusion(masked)
    monkeypatch.setattr(canvas_module, "diffusion_model_of", lambda *_, **__: model)
    options = ("--decoder", "diffusion", "--canvas", "24")
    status, found, _ = rows(schema, [{"prompt": "a"}, {"prompt": "b", "max_tokens": 0}], *options)
    assert status == 1
    assert json.loads(found[0]["text"]) == found[0]["value"]
    assert found[0]["canvas"]["slots"] == 24
    assert "error" in found[1]


def test_contexts_are_closed(
    rows: Callable[..., Outcome], schema: str, model: _Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line frees its key-value cache, also if it fails."""
    opened: list[Context] = []
    closed: list[Context] = []
    enter, leave = Context.__enter__, Context.__exit__
    monkeypatch.setattr(Context, "__enter__", lambda self: opened.append(self) or enter(self))
    monkeypatch.setattr(Context, "__exit__", lambda self, *error: closed.append(self) or leave(self, *error))
    rows(schema, [{"prompt": "a"}, {"prompt": "b", "max_tokens": 1}])
    assert len(opened) == 2
    assert {id(each) for each in opened} == {id(each) for each in closed}
