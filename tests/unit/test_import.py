"""``import structgen`` is cheap, and its public names are what it says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from machine_load import slowness

import structgen

_HEAVY = ("torch", "transformers", "pydantic", "lark", "numpy", "click", "triton", "vllm")


def _in_fresh_process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def _modules_after(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(_in_fresh_process(program)))


def test_import_needs_no_library() -> None:
    """Importing the package imports no library at all."""
    loaded = _modules_after("import structgen")
    assert "structgen" in loaded
    assert loaded.isdisjoint(_HEAVY)


def test_grammars_and_engine_need_no_model_library() -> None:
    """Compiling a schema against a vocabulary imports neither torch nor transformers, nor pydantic."""
    loaded = _modules_after(
        "import structgen as sg\n"
        "vocabulary = sg.Vocabulary([b'', *(bytes([byte]) for byte in b'0123456789-')], eos=[0])\n"
        "sg.compile(sg.json_schema({'type': 'integer'}), vocabulary)"
    )
    assert "structgen.engine.constraint" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "pydantic", "click", "triton", "vllm"})


def test_import_is_fast() -> None:
    """Importing the package takes under 0.3 s beyond the start of Python, the best of three tries."""
    program = "import time; t = time.perf_counter(); import structgen; print(time.perf_counter() - t)"
    assert min(float(_in_fresh_process(program)) for _ in range(3)) < 0.3 * slowness()


@pytest.mark.parametrize("name", structgen.__all__)
def test_public_names_resolve(name: str) -> None:
    """Every public name is there, and looking it up again gives the same object."""
    assert getattr(structgen, name) is getattr(structgen, name)
    assert name in dir(structgen)


def test_public_names_are_those_with_a_home() -> None:
    """The list of public names and the table of their homes agree, and are sorted."""
    assert sorted(structgen._HOMES) == sorted(structgen.__all__)


def test_unknown_names_are_refused() -> None:
    """A name that is not public is an ``AttributeError`` that names it."""
    with pytest.raises(AttributeError, match="'grammer'"):
        _ = structgen.grammer  # type: ignore[attr-defined]
