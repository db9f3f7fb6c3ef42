"""What all commands share: help, ``-o``, completion, and how few modules they import."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from structgen.cli.command import output_file
from structgen.cli.main import cli, main
from structgen.cli.run_option import DRAFTER_NAMES
from structgen.cli.terminal import Failure
from structgen.methods.catalogue import COMMIT_POLICIES, REUSES, SAMPLERS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCHEMA = str(EXAMPLES / "sentiment.schema.json")


def _commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            made = command.get_command(context, name)
            assert made is not None
            yield from _commands(made, (*path, name))
    else:
        yield path


COMMANDS = list(_commands())


def _help(*path: str, width: int = 80) -> str:
    result = CliRunner().invoke(cli, [*path, "--help"], terminal_width=width, prog_name="structgen")
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_a_terminal(path: tuple[str, ...]) -> None:
    """At 80 columns no line of the help is longer, but for examples, which are not wrapped."""
    text, _, examples = _help(*path).partition("\nExamples:\n")
    assert max(map(len, text.splitlines())) <= 80
    assert examples.strip()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_are_command_lines(path: tuple[str, ...]) -> None:
    """Every example has options and arguments that the commands know."""
    for line in _help(*path).partition("\nExamples:\n")[2].splitlines():
        words = shlex.split(line.rpartition(" | structgen")[2] if line.count(" | structgen") else line)
        words = [word for word in words if word != "structgen"]
        words = words[: words.index("|")] if "|" in words else words
        command: click.Command | None = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            command = command.get_command(context, words.pop(0))
        assert command is not None, line
        command.make_context(command.name, words)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_listed_once(path: tuple[str, ...]) -> None:
    """Groups leave no option out."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name) or command
    text = _help(*path).partition("\nExamples:\n")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            names = [name for name in parameter.opts if re.search(rf"^  .*{re.escape(name)}\b", text, re.MULTILINE)]
            assert names, parameter.name


def test_summaries_are_whole() -> None:
    """The list of commands cuts no summary off, and has them in sections."""
    text = _help()
    assert "..." not in text.partition("Commands")[0].replace("[ARGS]...", "")
    for name in ("run", "check", "diff", "doctor"):
        assert re.search(rf"^  {name}\s+\w", text, re.MULTILINE)
    assert "Say whether NEW accepts everything that OLD did, and the other way round." in " ".join(text.split())


def test_a_misspelt_command_is_suggested() -> None:
    """Commands that are not imported yet are suggested too."""
    result = CliRunner().invoke(cli, ["chekc"])
    assert result.exit_code == 2
    assert "Did you mean 'check'?" in result.stderr


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help has bold headings on a terminal, none in a pipe and none with ``NO_COLOR``."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments = ["check", "--help"]
    assert "\x1b[1mGrammar" in CliRunner().invoke(cli, arguments, color=True).output
    assert "\x1b" not in CliRunner().invoke(cli, arguments).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(cli, arguments, color=True).output


# -o


RESULTS = [
    ["check", SCHEMA],
    ["check", SCHEMA, "--json"],
    ["explain", SCHEMA, "--text", "{"],
    ["sample", SCHEMA, "--max-bytes", "100", "-n", "3"],
    ["convert", SCHEMA, "--to", "gbnf"],
    ["diff", SCHEMA, SCHEMA],
    ["show", SCHEMA],
    ["match", SCHEMA, SCHEMA],
]


@pytest.mark.parametrize("arguments", RESULTS, ids=lambda arguments: " ".join(arguments[::2])[:20])
def test_results_go_to_a_file(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``-o`` a file has what standard output would have, and the status is the same."""
    status = main(arguments)
    written = capsys.readouterr().out
    out = tmp_path / "out.txt"
    assert main([*arguments, "-o", str(out)]) == status
    assert capsys.readouterr().out == ""
    # The report counts the states of an engine that runs share while it lives.
    texts = (out.read_text(encoding="utf-8"), written)
    assert len({re.sub(r'\d+ states so far|"states": \d+', "", text) for text in texts}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]


def test_a_command_that_fails_leaves_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused schema writes nothing, and what was there stays."""
    out = tmp_path / "out.txt"
    out.write_text("before")
    bad = tmp_path / "bad.json"
    bad.write_text('{"type": "strin"}')
    assert main(["check", str(bad), "-o", str(out)]) == 2
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "out.txt"]
    capsys.readouterr()


def test_files_are_replaced_at_the_end(tmp_path: Path) -> None:
    """Readers see the old file or the new one; links and permissions stay."""
    out, link = tmp_path / "out.txt", tmp_path / "link.txt"
    out.write_text("before")
    out.chmod(0o640)
    link.symlink_to(out)
    with output_file(str(link)):
        click.echo("after é")
        click.echo(b"bytes")
        assert out.read_text() == "before"
    assert link.is_symlink()
    assert out.read_bytes() == "after é\nbytes\n".encode()
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    with contextlib.suppress(ZeroDivisionError), output_file(str(out)):
        click.echo("half")
        _ = 1 / 0
    assert out.read_bytes() == "after é\nbytes\n".encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "out.txt"]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    """A pipe is not replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with output_file(str(pipe)):
        click.echo("through")
    assert os.read(reader, 100) == b"through\n"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("path", ["no/such/folder/out.txt", "a\0b", "x" * 5000])
def test_a_file_that_cannot_be_written_is_named(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so before the command runs."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure, match="cannot be written"), output_file(path):
        raise AssertionError("the command runs")


# completion


def _completed(*words: str) -> list[str]:
    environment = {
        "_STRUCTGEN_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(["structgen", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner().invoke(cli, [], prog_name="structgen", env=environment)
    return result.output.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("c",), ["plain,check", "plain,completion", "plain,convert"]),
        (("run", "--policy", "f"), [f"plain,{name}" for name in COMMIT_POLICIES if name.startswith("f")]),
        (("run", "--reuse", "d"), [f"plain,{name}" for name in REUSES if name.startswith("d")]),
        (("run", "--drafter", "p"), [f"plain,{name}" for name in DRAFTER_NAMES if name.startswith("p")]),
        (("run", "--sampler", "be"), [f"plain,{name}" for name in SAMPLERS if name.startswith("be")]),
        (("run", "--batch"), ["plain,--batch-size"]),
        (("check", "gram"), ["file,gram", "path,grammars/"]),
        (("check", "./examples/que"), ["file,./examples/que", "path,./examples/query.lark"]),
        (("trace", "examples/q"), ["file,examples/q"]),
        (("run", "--device", "c"), ["plain,cpu", "plain,cuda"]),
        (("run", "--from", "la"), ["plain,lark"]),
        (("completion", "z"), ["plain,zsh"]),
        (("match", "no/such/"), ["file,no/such/"]),
        (("run", "x.json", "-o", "ou"), ["file,ou"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_names_are_completed(words: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options, methods and files are completed."""
    monkeypatch.chdir(EXAMPLES.parent)
    assert expected
    assert sorted(_completed(*words)) == sorted(expected)


def test_completions_show_whole_summaries() -> None:
    """Click would cut them at 45 characters."""
    environment = {"_STRUCTGEN_COMPLETE": "fish_complete", "COMP_WORDS": "structgen ", "COMP_CWORD": "ru"}
    answer = CliRunner().invoke(cli, [], prog_name="structgen", env=environment).output
    assert answer == "plain,run\tLet a model write JSON or text that FILE allows.\n"


def test_names_of_models_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded one, those of the hub's cache, GGUF files and folders; nothing else, and names that print."""
    for name in ("hub/models--acme--anvil-1b", "hub/datasets--acme--x", "hub/models--a\nb", "models", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("m.gguf", "m.txt", "m\n.gguf"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for command in ("run", "check", "explain", "batch", "serve"):
        assert _completed(command, "--model", "m") == ["file,m", "path,m.gguf", "path,models/"]
        assert _completed(command, "--model", "a") == ["file,a", "plain,acme/anvil-1b"]
        assert _completed(command, "--model", "em") == ["file,em", "plain,embedded"]
    assert "path,.hidden/" not in _completed("run", "--model", "")
    assert "path,.hidden/" in _completed("run", "--model", ".")


TYPED = {
    "structgen che\texam\tcon\t--whi\tcomp\t": ["check", "examples/contact.schema.json", "--whitespace", "compact"],
    "structgen check wei\tlar\t": ["check", "weird, na$me/large one.json"],
    "structgen run --model em\t--sampler bea\t": ["run", "--model", "embedded", "--sampler", "beam"],
    "structgen run --sampler=bea\t--drafter=non\t": ["run", "--sampler=beam", "--drafter=none"],
    "structgen check --from=la\texamples/contact.t\t": ["check", "--from=lark", "examples/contact.txt"],
}
"""Keys, and the arguments that structgen gets once Return is pressed."""

SHELLS = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
    "fish": ("--no-config", "-i"),
}
STARTS = {
    "bash": 'eval "$(structgen completion bash)"',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(structgen completion zsh)"',
    "fish": "structgen completion fish | source",
}
FAKE = """#!/bin/sh
if [ -n "$_STRUCTGEN_COMPLETE" ] || [ "$1" = completion ]; then exec '{python}' -m structgen.cli "$@"; fi
printf 'GOT<%s>' "$@"; echo END
"""


def _arguments(shell: str, keys: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """Type keys and Return into a shell on a terminal; return the arguments that structgen was called with."""
    program = shutil.which(shell)
    assert program is not None
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(program, [program, *SHELLS[shell]], environment)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            ready, _, _ = select.select([terminal], [], [], 60)
            assert ready, seen.decode(errors="replace")
            seen += os.read(terminal, 65536)

    try:
        os.write(terminal, f"{STARTS[shell]}; echo RE''ADY\n".encode())
        read_until(b"READY")
        seen = b""
        os.write(terminal, keys.encode() + b"\n")
        read_until(b"END")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return re.findall(r"GOT<([^>]*)>", seen.decode(errors="replace"))


@pytest.mark.parametrize("shell", list(SHELLS))
def test_shells_complete_lines(shell: str, tmp_path: Path) -> None:
    """On a terminal, Tab inserts commands, options, choices, models and files, quoted where that is needed."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/structgen").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "bin/structgen").chmod(0o755)
    for name in ("examples/contact.schema.json", "examples/contact.txt", "weird, na$me/large one.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "HOME": str(tmp_path),
        "TERM": "xterm",
        "INPUTRC": os.devnull,
        "PS1": "> ",
    }
    for keys, expected in TYPED.items():
        assert _arguments(shell, keys, tmp_path, environment) == expected


def test_a_code_page_lacks_no_character() -> None:
    """Pipes get UTF-8, and a terminal an escape for what it cannot show; neither ends the command."""

    def ran(*arguments: str, **streams: int) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "structgen.cli", *arguments]
        environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}
        return subprocess.run(command, env=environment, check=False, **streams)

    explained = ("explain", "--regex", "[a-z😀]+", "--text", "a")
    piped = ran(*explained, stdout=subprocess.PIPE)
    assert (piped.returncode, "'😀'" in piped.stdout.decode()) == (0, True)
    refused = ran("check", "--regex", "(日", stderr=subprocess.PIPE)
    assert (refused.returncode, "(日" in refused.stderr.decode()) == (2, True)
    terminal, its_end = pty.openpty()
    try:
        assert ran(*explained, stdout=its_end).returncode == 0
        assert rb"'\U0001f600'" in os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.close(its_end)


def _imports(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    program = (
        "import sys, json, io, contextlib\nfrom structgen.cli.main import main\n"
        "with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):\n"
        f"    status = main({list(arguments)!r})\n"
        "print(json.dumps([status, sorted(sys.modules)]))"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    status, modules = json.loads(made.stdout)
    assert status == 0, made.stderr
    return set(modules)


_MODELS = {"torch", "transformers", "triton", "tokenizers", "httpx"}


@pytest.mark.parametrize("file", ["sentiment.schema.json", "pet.schema.json"])
def test_check_imports_little(file: str) -> None:
    """Checking a JSON Schema imports no library but click, and no command but its own."""
    loaded = _imports("check", str(EXAMPLES / file))
    assert loaded.isdisjoint({*_MODELS, "numpy", "pydantic", "lark", "jsonschema", "interegular", "jinja2"})
    assert loaded.isdisjoint(
        {
            "structgen.cli.run",
            "structgen.cli.explain",
            "structgen.engine.analysis.departure",
            "structgen.decode",
            "structgen.program",
        }
    )
    for_others = {"logging", "shutil", "html", "difflib", "random", "structgen.log", "structgen.markup"}
    assert loaded.isdisjoint({*for_others, "structgen.engine.lint.ambiguity", "structgen.engine.lint.collision"})
    ours = {name for name in loaded if name.startswith("structgen")}
    assert "structgen.engine.constraint" in ours
    assert len(ours) <= 110  # 95 when this was written; each takes about a millisecond


def test_the_garbage_collector_is_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    """A call of ``main`` from Python changes the collector only until it returns."""
    before, frozen = (gc.get_threshold(), gc.isenabled()), gc.get_freeze_count()
    seen = []

    def look() -> int:
        seen.append(gc.get_threshold())
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cli.commands, "check", click.Command("check", callback=look))
        assert main(["check"]) == 0
    assert seen[0][0] > before[0][0]
    assert main(["check", "no such file"]) == 2
    assert (gc.get_threshold(), gc.isenabled()) == before
    assert gc.get_freeze_count() <= frozen  # some of what was frozen before may be gone
    capsys.readouterr()


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("--version",)], ids=" ".join)
def test_help_imports_no_library(arguments: tuple[str, ...]) -> None:
    """Help needs click alone."""
    loaded = _imports(*arguments)
    assert loaded.isdisjoint({*_MODELS, "numpy", "pydantic", "lark", "structgen.engine", "structgen.decode"})


@pytest.mark.parametrize("arguments", RESULTS[2:-1], ids=lambda arguments: arguments[0])
def test_commands_without_models_import_none(arguments: list[str]) -> None:
    """Only ``run`` and options that name a model import what runs models."""
    assert _imports(*arguments).isdisjoint(_MODELS)
