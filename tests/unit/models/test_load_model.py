"""``load_model``: its arguments, its errors, and the cost of importing it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from structgen import models
from structgen.engine import Vocabulary
from structgen.errors import ModelError
from structgen.models import LanguageModel, load_model, location as hub
from structgen.models.location import place
from structgen.models.store import SourceUnavailable


def test_importing_the_package_imports_no_model_library() -> None:
    """Programs that never load a model do not import torch."""
    code = (
        "import structgen.models, sys\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'safetensors', 'gguf', 'jinja2'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_runtime_of_a_gguf_file(tiny_gguf: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp where it is installed and nothing asks for torch."""
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(models, "_GPUS", ())
    named = {
        "llama.cpp": [{}, {"device": "cpu"}, {"threads": 1}, {"resident": False}],
        "torch": [{"dtype": "float32"}, {"resident": True}, {"runtime": "torch"}],
    }
    for runtime, choices in named.items():
        for settings in choices:
            assert _runtime(load_model(tiny_gguf, **settings)) == runtime, settings
    assert _runtime(load_model(tiny_folder, device="cpu")) == "torch"
    monkeypatch.setattr(models, "_GPUS", (str(tiny_gguf),))  # a file that is there
    assert _runtime(load_model(tiny_gguf)) == "torch"
    assert _runtime(load_model(tiny_gguf, device="cpu")) == "llama.cpp"

    def broken() -> None:
        raise ModelError("llama.cpp", "its parameters are not understood")

    monkeypatch.setattr(models, "library", broken)
    assert _runtime(load_model(tiny_gguf, device="cpu")) == "torch"


def test_without_its_gguf_file_the_embedded_model_may_be_there_for_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The converted weights may be in the cache, or on the hub; without torch they are no help."""
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(models, "_GPUS", ())

    def unavailable(**_: Any) -> Path:
        raise SourceUnavailable("package p", "pip cannot download it")

    monkeypatch.setattr(models, "embedded_gguf", unavailable)
    converted = models.HashModel(Vocabulary([b"", b"a"], eos=[0]))
    monkeypatch.setattr(models, "load_embedded", lambda **_: converted)
    assert load_model() is converted
    with pytest.raises(SourceUnavailable):
        load_model(runtime="llama.cpp")
    monkeypatch.setattr(models, "_has_torch", lambda: False)
    with pytest.raises(SourceUnavailable):
        load_model()


def _runtime(model: LanguageModel) -> str:
    return "llama.cpp" if type(model).__name__ == "LlamaCppModel" else "torch"


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "cpu:x"])
def test_unknown_devices_are_refused(device: str) -> None:
    """A device that torch cannot use is refused before anything is loaded."""
    pytest.importorskip("torch")
    with pytest.raises(ModelError, match="torch cannot use it") as caught:
        place(device, "auto")
    assert caught.value.subject == f"device {device!r}"


def test_dtypes_are_resolved_by_device() -> None:
    """On a CPU "auto" is float32; names of torch are understood; others are refused."""
    torch = pytest.importorskip("torch")
    assert place("cpu", "auto").dtype is torch.float32
    assert place("meta", "auto").dtype is None
    assert place("cpu", "torch.bfloat16").dtype is torch.bfloat16
    with pytest.raises(ModelError, match="choose 'auto' or one of float32, bfloat16, float16"):
        place("cpu", "int3")


def test_threads_are_set_only_when_asked(tiny_folder: Path) -> None:
    """By default the setting of the process stays."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    before = torch.get_num_threads()
    try:
        load_model(tiny_folder, device="cpu")
        assert torch.get_num_threads() == before
        load_model(tiny_folder, device="cpu", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ModelError, match="at least one thread"):
        load_model(tiny_folder, threads=0)


@pytest.mark.parametrize("pair", [(), (1,), (1, 2, 3)])
def test_pairs_have_two_parts(pair: Any) -> None:
    """A tuple is a model and its tokenizer."""
    with pytest.raises(ModelError, match=f"found {len(pair)} items"):
        load_model(pair)


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_missing_package_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The error names the extra that contains it."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(ModelError, match=r"pip install 'structgen-lm\[models\]'") as caught:
        load_model(tmp_path)
    assert caught.value.subject == f"package {missing!r}"


@pytest.mark.parametrize("policy", [None, "PASSIVE"])
@pytest.mark.parametrize("spins", [None, "7"])
def test_threads_spin_shortly_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str | None, spins: str | None
) -> None:
    """OpenMP is told how long, and what the user has set stays."""
    for name, value in (("OMP_WAIT_POLICY", policy), ("GOMP_SPINCOUNT", spins)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    with pytest.raises(ModelError):
        load_model(tmp_path / "none")
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    assert os.environ.get("GOMP_SPINCOUNT") == (spins if policy or spins else "3000")


def test_unknown_models_are_refused_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error is reported at once."""

    def unknown(repository: str) -> hub.Reach:
        raise ModelError(f"model {repository!r}", "unknown")

    def forbidden(*modules: str) -> None:
        raise AssertionError(modules)

    monkeypatch.setattr(hub, "reach", unknown)
    monkeypatch.setattr("structgen.models.require", forbidden)
    with pytest.raises(ModelError, match="'gtp2'"):
        load_model("gtp2")
    with pytest.raises(ModelError, match="no such file or folder"):
        load_model("./absent")
