"""The commands that sample strings and compare languages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from structgen.cli.main import main


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def sums(tmp_path: Path) -> str:
    path = tmp_path / "sums.lark"
    path.write_text('start: start "+" N | N\nN: /[0-9]/')
    return str(path)


@pytest.fixture
def calculator(tmp_path: Path) -> str:
    path = tmp_path / "calculator.lark"
    path.write_text('start: start ("+" | "-") N | N\nN: /[0-9]+/')
    return str(path)


def test_samples_are_members(capsys: pytest.CaptureFixture[str], sums: str) -> None:
    """Each line is a string of at most the given length; equal seeds give equal lines."""
    status, out, err = _run(capsys, "sample", sums, "-n", "20", "--max-bytes", "9", "--seed", "4")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 20
    assert all(len(line) <= 9 and all(part.isdigit() and len(part) == 1 for part in line.split("+")) for line in lines)
    assert _run(capsys, "sample", sums, "-n", "20", "--max-bytes", "9", "--seed", "4")[1] == out
    assert {len(line) for line in lines} == {1, 3, 5, 7, 9}


def test_samples_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is a JSON string, of any characters if the option asks for that."""
    status, out, _ = _run(capsys, "sample", "--regex", "[a\\né]{2}", "--json", "-n", "40", "--any-character")
    assert status == 0
    texts = {json.loads(line) for line in out.splitlines()}
    assert {len(text) for text in texts} == {2}
    assert any("é" in text for text in texts)
    assert any("\n" in text for text in texts)
    _, out, _ = _run(capsys, "sample", "--regex", "[aé]{2}", "-n", "10")
    assert set(out.split()) == {"aa"}


def test_uniform_samples_are_long(capsys: pytest.CaptureFixture[str]) -> None:
    """All strings are equally likely, so nearly all samples have the greatest length."""
    _, out, _ = _run(capsys, "sample", "--regex", "[a-z]*", "--uniform", "--max-bytes", "12", "-n", "30")
    assert all(len(line) >= 10 for line in out.splitlines())
    _, out, _ = _run(capsys, "sample", "--regex", "[a-z]*", "--exactly", "7", "-n", "5")
    assert all(len(line) == 7 for line in out.splitlines())


def test_sample_says_why_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 comes with the length of the shortest string."""
    status, out, err = _run(capsys, "sample", "--regex", "aaaaa", "--max-bytes", "3")
    assert (status, out) == (2, "")
    assert "the shortest has 5 bytes" in err


def test_diff_of_grammars(capsys: pytest.CaptureFixture[str], sums: str, calculator: str) -> None:
    """A superset gives status 0; the opposite gives status 1 and a shortest text."""
    status, out, _ = _run(capsys, "diff", sums, calculator)
    assert status == 0
    assert out.splitlines()[0] == "NEW accepts all that OLD accepts"
    assert out.splitlines()[1].startswith('OLD does not accept all that NEW accepts: "')
    status, out, _ = _run(capsys, "diff", calculator, sums, "--json")
    answer = json.loads(out)
    assert status == 1
    assert answer["new_accepts_old"]["holds"] is False
    assert len(answer["new_accepts_old"]["witness"]) == 2
    assert answer["new_accepts_old"]["offset"] == 1
    assert answer["old_accepts_new"]["holds"] is True


def test_diff_of_schemas(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """For a tightened schema the example is a value that it now refuses."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps({"type": "integer", "minimum": 0, "maximum": 99}))
    new.write_text(json.dumps({"type": "integer", "minimum": 0, "maximum": 50}))
    status, out, _ = _run(capsys, "diff", str(old), str(new))
    assert status == 1
    assert out.splitlines()[0] == 'NEW does not accept all that OLD accepts: "51" is invalid for NEW at byte 1'
    assert out.splitlines()[1] == "OLD accepts all that NEW accepts"


def test_diff_refuses_what_it_cannot_read(capsys: pytest.CaptureFixture[str], sums: str) -> None:
    """Status 2 comes with the name of the file."""
    status, _, err = _run(capsys, "diff", sums, "no-such-file.lark")
    assert status == 2
    assert "no-such-file" in err
    assert _run(capsys, "diff", sums)[0] == 2


def test_check_prints_findings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Warnings fail with --strict, information does not; both are notes, and structured in JSON."""
    path = tmp_path / "g.lark"
    path.write_text('start: "a" start | "b"\nlost: "x"')
    status, out, err = _run(capsys, "check", str(path), "--strict")
    assert status == 1
    assert "note: 2:1: rule 'lost' is never used" in err
    assert "a random example has about 2 characters" in out
    path.write_text('start: "a" start | "b"')
    status, out, err = _run(capsys, "check", str(path), "--strict", "--json")
    assert (status, err) == (0, "")
    findings = json.loads(out)["findings"]
    assert {finding["severity"] for finding in findings} == {"information"}
    assert {finding["lint"] for finding in findings} == {"ambiguity", "no bound on the length"}
