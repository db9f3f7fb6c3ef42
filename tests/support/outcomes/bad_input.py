"""What users do wrong in their first hour, and what structgen answers: one page to read.

Each case is a command with the files that it reads, or a line of Python.  ``bad_input`` runs all of them and yields
what was written, the exit status, or the error.  Models are toys.  Two cases run in a process of their own, since they
are about its standard output.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy
from bad_input_cases import COMMANDS, CONTEXT, FILES, PYTHON, Command
from click.testing import CliRunner

import structgen as sg
from structgen.cli.main import main
from structgen.methods.monitors.python_names import python_attributes
from structgen.methods.monitors.sql.catalogue import read_catalogue
from structgen.models import HashModel
from structgen.models.toy.hash import HashDiffusion

__all__ = ["bad_input"]

_SHOWN: Final = 200
"""Most bytes of a file that are shown."""
_LINES: Final = 5
"""Most lines of standard output that are shown."""
_SECONDS: Final = re.compile(r" in \d+\.\d s:")
_TIMEOUT_S: Final = 60


class _Answer(NamedTuple):
    status: int
    output: str
    errors: str


def bad_input() -> Iterator[str]:
    """Yield each case with its answer."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _toys(), _imports_kept():
        yield "# Commands: what is on standard error, and the exit status"
        for case in COMMANDS:
            yield from _command(case)
        yield "\n# Python: the error"
        for name, data in FILES.items():
            _write(name, data)
        names = _names()
        for title, line in PYTHON:
            yield f"\n## {title}\n>>> {line}\n{_raised(line, names)}"


def _command(case: Command) -> Iterator[str]:
    yield f"\n## {case.title}"
    for name, data in case.files.items():
        _write(name, data)
        yield f"{name}: {_shown(data)}" if data is not None else f"{name}/: a folder"
    redirected = f" > {case.into}" if case.into else ""
    yield f"$ {' '.join(map(_quoted, ('structgen', *case.arguments)))}{redirected}"
    answer = _in_process(case) if not case.into else _alone(case)
    lines = answer.output.splitlines()
    if lines:
        yield _indented("\n".join([*lines[:_LINES], *(["..."] if lines[_LINES:] else [])]), "  ")
    if answer.errors.strip():
        errors = _SECONDS.sub(" in 0.0 s:", answer.errors.replace(str(Path.cwd()), "FOLDER"))
        yield _indented(errors, "| ")
    yield f"exit {answer.status}"


def _in_process(case: Command) -> _Answer:
    runner = CliRunner()
    with case.changed(), runner.isolation(input=case.stdin, env={"COLUMNS": "100"}) as streams:
        status = main(case.arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    output, errors = (stream.getvalue().decode() for stream in streams[:2])
    return _Answer(status, output, errors)


def _alone(case: Command) -> _Answer:
    """Run a command in a process of its own, with its standard output where the case says."""
    command = [sys.executable, "-m", "structgen.cli", *case.arguments]
    if case.into == "/dev/full":
        with open("/dev/full", "wb") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=_TIMEOUT_S, check=False)
    else:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=_TIMEOUT_S, check=False)
        os.close(write)
    return _Answer(done.returncode, "", done.stderr.decode())


def _write(name: str, data: bytes | None) -> None:
    path = Path(name)
    if data is None:
        path.mkdir(exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _shown(data: bytes) -> str:
    try:
        text = data[:_SHOWN].decode()
    except UnicodeDecodeError:
        return f"{data[:24]!r}" + ("..." if len(data) > 24 else "")
    more = f" ... ({len(data):,} bytes)" if len(data) > _SHOWN else ""
    if "\r" in text or "\ufeff" in text:
        return ascii(text) + more
    return (
        text.rstrip("\n").replace("\n", "\n    ") + more
        if "\n" not in text.rstrip("\n")
        else ("\n    " + text.rstrip("\n").replace("\n", "\n    ") + more)
    )


def _quoted(argument: str) -> str:
    plain = argument and all(character.isalnum() or character in "-_./:=,@" for character in argument)
    return argument if plain else f"'{argument}'" if len(argument) <= _SHOWN else f"'{argument[:20]}...'"


def _indented(text: str, mark: str) -> str:
    return "\n".join(f"{mark}{line}".rstrip() for line in text.rstrip("\n").splitlines())


def _raised(line: str, names: dict[str, Any]) -> str:
    try:
        eval(line, names)
    except Exception as error:
        lines = traceback.format_exception_only(error)
        return "".join(lines).rstrip().replace("structgen.errors.", "")
    return "(no error)"


@contextlib.contextmanager
def _toys() -> Iterator[None]:
    """Commands get a model without weights; the loader itself answers where a case names a model."""
    from structgen import models

    load: Callable[..., Any] = sg.load_model  # also keeps the patch from staying in the lazy name

    def toy(source: Any = None, **settings: Any) -> Any:
        return _model() if source is None else load(source, **settings)

    with patch.object(models, "load_model", toy):
        yield


@contextlib.contextmanager
def _imports_kept() -> Iterator[None]:
    """Programs are modules of this process; they and the folder that they lie in are forgotten at the end."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in ("form", "lost", "none", "wrong"):
            if name not in modules:
                sys.modules.pop(name, None)


def _without(library: str, call: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Call a function as if a library was not installed."""

    class Missing(MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == library:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    held = sys.modules.pop(library, None)
    try:
        with patch.object(sys, "meta_path", [Missing(), *sys.meta_path]):
            return call(*arguments, **settings)
    finally:
        if held is not None:
            sys.modules[library] = held


def _vocabulary() -> sg.Vocabulary:
    return sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def _model() -> HashModel:
    return HashModel(_vocabulary(), max_context=CONTEXT, name="toy")


def _names() -> dict[str, Any]:
    """What the lines of Python can use."""
    letters = sg.Vocabulary([b"", b"a", b"b", b" "], eos=[0])
    return {
        "sg": sg,
        "re": re,
        "numpy": numpy,
        "model": _model(),
        "diffusion_model": HashDiffusion(
            sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b""], eos=[0], special={257: "<mask>"}),
            name="toy diffusion",
        ),
        "letters_model": HashModel(letters, name="letters"),
        "grammar": sg.regex("[a-z]{1,8}"),
        "constraint": sg.compile(sg.regex("[a-z]{1,8}"), _vocabulary()),
        "greet": importlib.import_module("form").greet,
        "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        "vocabulary": _vocabulary(),
        "without": _without,
        "read_catalogue": read_catalogue,
        "python_attributes": python_attributes,
        "transformers_model": _TransformersModel(),
        "tokenizer": _Tokenizer(),
    }


class _TransformersModel:
    """What structgen can see of a model of transformers without importing it: where its class comes from."""

    __module__ = "transformers.models.llama.modeling_llama"


class _Tokenizer:
    """The same of a tokenizer."""

    __module__ = "transformers.tokenization_utils_tokenizers"


_TransformersModel.__name__ = _TransformersModel.__qualname__ = "LlamaForCausalLM"
_Tokenizer.__name__ = _Tokenizer.__qualname__ = "PreTrainedTokenizerFast"
