"""``import structgen`` is cheap, and its public names exist."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

import pytest

import structgen
from structgen.grammar.analysis import strongly_connected
from structgen.lazy import MOVED, stub_names

RECORD = Path(__file__).resolve().parents[1] / "record" / "public_names.txt"
NAMES = [line for line in RECORD.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]

_HEAVY = ("torch", "transformers", "pydantic", "lark", "numpy", "click", "triton", "vllm")


def _in_fresh_process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def _modules_after(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    return set(json.loads(_in_fresh_process(program)))


def test_import_needs_no_library() -> None:
    """Importing the package imports no library at all, and of its own modules the one that finds names."""
    loaded = _modules_after("import structgen")
    assert {name for name in loaded if name.startswith("structgen")} == {"structgen", "structgen.lazy"}
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


@pytest.mark.parametrize("name", structgen.__all__)
def test_public_names_resolve(name: str) -> None:
    """Every public name exists, and looking it up again gives the same object."""
    assert getattr(structgen, name) is getattr(structgen, name)
    assert name in dir(structgen)


def test_core_names_are_in_the_stub() -> None:
    """The list of core names agrees with the stub, which editors read."""
    stub = Path(structgen.__file__).with_suffix(".pyi")
    assert set(structgen.__all__) <= set(stub_names(stub))
    assert len(structgen.__all__) <= 32


@pytest.mark.parametrize("stub", sorted(Path(structgen.__file__).parent.glob("*.pyi")), ids=lambda stub: stub.stem)
def test_every_public_name_is_on_record(stub: Path) -> None:
    """A name in a stub is promised, or it is not public."""
    module = "structgen" if stub.stem == "__init__" else f"structgen.{stub.stem}"
    offered = {f"{module}.{name}" for name in stub_names(stub)}
    assert offered <= set(NAMES), f"add to {RECORD}: {sorted(offered - set(NAMES))}"


@pytest.mark.parametrize("line", NAMES)
def test_every_name_stays_where_it_was_promised(line: str) -> None:
    """No public name is lost; a moved one says where it is now, and is the same object there."""
    place, _, name = line.rpartition(".")
    module = importlib.import_module(place)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = getattr(module, name)
    assert value is not None
    if place == "structgen" and name not in structgen.__all__ and not isinstance(value, ModuleType):
        (warning,) = caught
        new = str(warning.message).rpartition(" ")[2]
        assert getattr(importlib.import_module(new.rpartition(".")[0]), name) is value
    else:
        assert not caught


@pytest.mark.parametrize("old", sorted(MOVED))
def test_moved_modules_are_found_under_their_old_names(old: str) -> None:
    """An old module is the new one, with a warning that names it."""
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"is now {MOVED[old]}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(MOVED[old])


def _imports_of(path: Path, modules: Collection[str]) -> set[str]:
    """The own modules that a file imports anywhere, for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return found & set(modules)


def test_circles_of_imports_are_small() -> None:
    """No circle has more than five files, with imports for types and inside functions; a reader goes bottom up."""
    root = Path(structgen.__file__).parent
    files = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }
    graph = {module: _imports_of(path, files) - {module} for module, path in files.items()}
    assert len(graph["structgen.decode.autoregressive.loop"]) > 5
    largest = max(strongly_connected(graph), key=len)
    assert len(largest) <= 5, largest


def test_unknown_names_are_refused() -> None:
    """A name that is not public is an ``AttributeError`` that names it."""
    with pytest.raises(AttributeError, match="'grammer'"):
        _ = structgen.grammer  # type: ignore[attr-defined]


def test_a_misspelt_name_is_suggested() -> None:
    """Python's traceback asks for the public name that is meant."""
    for line, meant in (("structgen.generat", "generate"), ("structgen.samplers.SMCC", "SMC")):
        program = f"import structgen, structgen.samplers\n{line}"
        made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert made.stderr.rstrip().endswith(f"Did you mean: {meant!r}?"), made.stderr
