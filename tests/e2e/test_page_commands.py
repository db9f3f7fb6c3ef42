"""The commands of the pages, and the blocks that no test runs, each with its reason."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import click
import pytest

from structgen.cli.main import cli

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([CHECKOUT / "README.md", *CHECKOUT.glob("docs/**/*.md")])
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND: Final = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_RUN: Final = re.compile(r"(?:(?:echo|printf) .*\| )?structgen (?:check|match|explain|sample|diff|convert) ")

WITHOUT_A_RUN: Final = {
    "structgen run": "loads a model; tests/e2e/test_cli.py runs such commands on small ones",
    "structgen serve": "does not end; tests/unit/integrations/server starts servers",
    "structgen batch": "loads a model; tests/unit/cli has batches on small ones",
    "structgen doctor": "says what this machine has",
    "pip install": "installs packages",
    "make": "makes environments",
    "vllm serve": "needs vLLM and a large model; tests/engines/vllm starts servers",
    "python -m sglang.launch_server": "needs SGLang and a GPU",
    "cat out.jsonl": "shows what a model wrote",
    "printf": "writes the input of the next command",
}
"""What the pages show and no test of the pages runs, by the first words, and why."""

NOT_RUN: Final = {
    "guides/llama-cpp.md": "needs llama.cpp with a model, and llama-cpp-python; tests/unit/integrations run it",
    "guides/mlx.md": "needs mlx; `make engines-mlx` runs it",
    "guides/ray.md": "needs Ray; `make engines-ray` runs it",
    "guides/transformers.md": "needs a GPU",
    "guides/vllm.md": "needs vLLM; `make engines-vllm` runs it",
    "reference/canonical.md": "needs the tokenizer of a model; tests/unit/decode/sampling run it on several",
    "reference/speculative.md": "needs trained heads; tests/unit/methods/drafters makes some",
}
"""Pages with Python that is marked as text, and why no test of the pages runs it."""


def _name(page: Path) -> str:
    return page.relative_to(CHECKOUT / "docs").as_posix() if page.is_relative_to(CHECKOUT / "docs") else page.name


def _commands() -> list[tuple[str, str, str]]:
    """Page, command and output of each command after ``$``."""
    return [
        (_name(page), command, output)
        for page in PAGES
        for language, block in _BLOCK.findall(page.read_text(encoding="utf-8"))
        if language in ("", "console")
        for command, output in _COMMAND.findall(block)
    ]


def _transcripts() -> list[tuple[str, str]]:
    return [(command, output) for _, command, output in _commands() if _RUN.match(command)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("command", "output"), _transcripts(), ids=lambda text: text[:40])
def test_transcripts_are_true(command: str, output: str) -> None:
    """Commands write what the documentation shows; ``...`` stands for the rest, and nothing for all of it."""
    line = command.replace("structgen ", f"'{sys.executable}' -m structgen.cli ", 1)
    done = subprocess.run(["bash", "-c", line], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    written = done.stdout + done.stderr
    shown, ellipsis, _ = output.rstrip().partition("...")
    if not output.strip():
        assert done.returncode == 0, written
    else:
        assert written.startswith(shown.rstrip(" ")) if ellipsis else written.rstrip() == shown


def test_documentation_has_transcripts() -> None:
    """The pattern above finds the transcripts of the documentation."""
    assert len(_transcripts()) >= 12


def test_every_other_command_has_a_reason() -> None:
    """A command that is not run is one of those that the table above names, and each of these is there."""
    others = [(page, command) for page, command, _ in _commands() if not _RUN.match(command)]
    reasons = {
        command: next((words for words in WITHOUT_A_RUN if command.startswith(words)), None) for _, command in others
    }
    assert [(page, command) for page, command in others if reasons[command] is None] == []
    assert set(reasons.values()) == set(WITHOUT_A_RUN)


def _shown_lines() -> list[str]:
    """Every line of a block that calls structgen, with or without ``$``."""
    blocks = [block for page in PAGES for _, block in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    called = re.compile(r"^(?:\$ )?(?:[a-z]+ .*\| )?(structgen [a-z].*)$", re.MULTILINE)
    with_arguments = re.compile(r"structgen (?!.*    )[a-z]+ (-|masks |'|\S+\.|\S+:|<\()")
    return [line for block in blocks for line in called.findall(block) if with_arguments.match(line)]


@pytest.mark.parametrize("line", sorted(set(_shown_lines())), ids=lambda line: line[:50])
def test_options_exist(line: str) -> None:
    """The arguments of each command are read by the command; files need not be there."""
    words = shlex.split(re.sub(r"<\([^)]*\)", "FILE", re.split(r" (?:2?>|\||#|&)", line)[0]))[1:]
    context = click.Context(cli, **cli.context_settings)
    command = cli.get_command(context, words[0])
    assert command is not None, words[0]
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.get_command(context, words[0])
        assert command is not None, words[0]
    command.make_context(words[0], words[1:], parent=context, resilient_parsing=False)


def test_lines_are_found() -> None:
    """The pattern for lines finds those of all commands."""
    assert len(_shown_lines()) > 20
    assert {"run", "check", "serve", "batch", "bench"} <= {line.split()[1] for line in _shown_lines()}


def test_extras_and_targets_exist() -> None:
    """What the pages install and make is there to be installed and made."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    extras = {
        extra for text in texts for held in re.findall(r"structgen-lm\[([\w,]+)\]", text) for extra in held.split(",")
    }
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extras <= set(project["optional-dependencies"])
    assert len(extras) >= 6
    made = {target for _, command, _ in _commands() for target in re.findall(r"^make ([a-z-]+)", command)}
    made |= {target for text in texts for target in re.findall(r"`make ([a-z-]+)", text)}
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert made <= set(targets)


def _python_as_text() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for page in PAGES:
        blocks = [block for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")) if language == "text"]
        if held := [block for block in blocks if re.search(r"\bsg\.|^from |^import |LLM\(", block, re.MULTILINE)]:
            found[_name(page)] = held
    return found


def test_python_that_is_not_run_has_a_reason() -> None:
    """Each page with Python that is marked as text is in the table above, and no other page."""
    assert set(_python_as_text()) == set(NOT_RUN)


def test_names_of_blocks_that_are_not_run_exist() -> None:
    """What such blocks import from structgen is defined there."""
    count = 0
    for page, blocks in _python_as_text().items():
        for module, names in re.findall(r"^from (structgen[\w.]*) import (.+)$", "\n".join(blocks), re.MULTILINE):
            spec = importlib.util.find_spec(module)
            assert spec is not None, module
            assert spec.origin is not None, module
            tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
            defined = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            defined |= {
                node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.alias))
            }
            missing = {name.strip() for name in names.split("#")[0].split(",")} - defined
            assert not missing, f"{page}: {module} has no {missing}"
            count += 1
    assert count >= 4
