"""``structgen convert``, and grammars of every notation in the command line and in ``load``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from structgen.cli.language_commands import Target
from structgen.cli.main import main
from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded
from structgen.frontends.convert import DIALECTS
from structgen.frontends.loading import load
from structgen.grammar.limits import Limits
from structgen.testing.small_scope import language

FILES = {
    "a.gbnf": 'root ::= "a" root "b" | ""',
    "a.ebnf": 'root ::= "a" root "b"\n | ""',
    "a.lark": 'start: "a" start "b" |',
}


@pytest.fixture(params=list(FILES))
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    path.write_text(FILES[path.name], encoding="utf-8")
    return path


def test_the_notations_are_all_there() -> None:
    assert get_args(Target) == DIALECTS


@pytest.mark.parametrize("to", ["gbnf", "ebnf", "lark", "llguidance"])
def test_files_are_converted(file: Path, to: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output is read back as a file of its own suffix."""
    out = tmp_path / f"out.{'lark' if to == 'llguidance' else to}"
    assert main(["convert", str(file), "--to", to, "-o", str(out)]) == 0
    assert main(["convert", str(file), "--to", to]) == 0
    written = capsys.readouterr().out
    assert written == out.read_text(encoding="utf-8")
    assert language(load(out), 4, b"ab") == {b"", b"ab", b"aabb"}


def test_losses_go_to_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.ebnf"
    file.write_text('root[capture="x"] ::= "a"')
    assert main(["convert", str(file), "--to", "gbnf"]) == 0
    assert main(["convert", str(file), "--to", "gbnf", "--strict"]) == 1
    out, err = capsys.readouterr()
    assert out == 'root ::= "a"\n' * 2
    assert err == "lost: Capture 'x' in rule root: dropped\n" * 2


def test_what_cannot_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.ebnf"
    file.write_text('root ::= "b" x\nx[max_tokens=2] ::= "a"*')
    assert main(["convert", str(file), "--to", "lark"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Budget in rule x" in err
    assert "--superset" in err
    assert main(["convert", str(file), "--to", "lark", "--superset"]) == 0
    out, err = capsys.readouterr()
    assert "superset" in err
    assert out == 'start: "b" x\nx: "a"*\n'


def test_regular_expressions_and_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--regex", "[a-z]+", "--to", "json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == {"type": "string", "pattern": "^(?:[a-z]+)$"}
    file = tmp_path / "s.json"
    file.write_text('{"enum": [1, "a"]}')
    assert main(["convert", str(file), "--to", "ebnf", "--whitespace", "compact"]) == 0
    assert '"\\"a\\""' in capsys.readouterr().out
    assert main(["convert", str(file), "--to", "json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == {"enum": [1, "a"]}


def test_all_commands_take_them(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "document"
    document.write_text("aabb")
    assert main(["match", str(file), str(document)]) == 0
    assert main(["check", str(file)]) == 0
    document.write_text("aab")
    assert main(["match", str(file), str(document)]) == 1
    other = tmp_path / "grammar.txt"
    other.write_bytes(file.read_bytes())
    assert main(["check", str(other), "--from", file.suffix[1:]]) == 0
    assert main(["check", str(other)]) == 2
    assert "--from" in capsys.readouterr().err


def test_faults_have_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.gbnf"
    file.write_text("root ::= x")
    assert main(["check", str(file)]) == 2
    assert "1:10" in capsys.readouterr().err
    with pytest.raises(GrammarSyntaxError, match=r"a\.gbnf:1:10"):
        load(file)


def test_another_rule_to_start_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.gbnf"
    file.write_text('a ::= "x"')
    assert main(["convert", str(file), "--start", "a", "--to", "lark"]) == 0
    assert capsys.readouterr().out == 'start: "x"\n'
    assert language(load(file, start="a"), 1, b"x") == {b"x"}


def test_load_goes_by_suffix(tmp_path: Path) -> None:
    schema = tmp_path / "s.JSON"
    schema.write_text('{"const": 1}')
    assert language(load(schema), 1, b"12") == {b"1"}
    with pytest.raises(GrammarError, match="no rules to start from"):
        load(schema, start="x")
    with pytest.raises(GrammarError, match=r"the suffix is '\.txt'"):
        load(tmp_path / "x.txt")
    with pytest.raises(GrammarError, match="cannot be read"):
        load(tmp_path / "x.gbnf")
    with pytest.raises(LimitExceeded):
        load(schema, limits=Limits(source_bytes=2))
