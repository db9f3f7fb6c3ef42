"""Answers of the hub and their handling; the network is replaced where the hub's library meets it."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from structgen.errors import ModelError
from structgen.models import location as hub
from structgen.models.protocol import silent
from structgen.models.store import SourceUnavailable

huggingface_hub = pytest.importorskip("huggingface_hub")


class Offline(Exception):
    """Stands for any error of the current HTTP library."""


def answering(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """Let the hub answer every request with ``error``, or with success."""

    def model_info(self: Any, repository: str, *, timeout: float) -> None:
        assert timeout <= 10
        if error is not None:
            raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def of_the_hub(name: str) -> Exception:
    """Make an error of the hub's library without an HTTP response."""
    kind = getattr(huggingface_hub.errors, name)
    error = kind.__new__(kind)
    Exception.__init__(error, f"{name}\nsecond line")
    return error


def test_a_known_model_is_online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub answers."""
    answering(monkeypatch, None)
    assert hub.reach("a/b") is hub.Reach.ONLINE


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("RepositoryNotFoundError", "neither a local file or folder nor a model on the Hugging Face hub"),
        ("GatedRepoError", "users who accepted its terms"),
    ],
)
def test_unknown_and_gated_models(monkeypatch: pytest.MonkeyPatch, name: str, problem: str) -> None:
    """Each answer of the hub gives one error, with one line of evidence."""
    answering(monkeypatch, of_the_hub(name))
    with pytest.raises(ModelError, match=problem) as caught:
        hub.reach("a/b")
    assert caught.value.evidence == name
    assert not isinstance(caught.value, SourceUnavailable)


@pytest.mark.parametrize("error", [Offline("no route"), OSError("name or service not known")])
def test_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> None:
    """Without the hub its local cache is enough; without both, the error comes at once."""
    answering(monkeypatch, error)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: None)
    with pytest.raises(SourceUnavailable, match="cannot be reached") as caught:
        hub.reach("a/b")
    assert caught.value.evidence.endswith(f"the hub's local cache; {error}")
    assert "check the spelling" in caught.value.remedy
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args: str(tmp_path))
    assert hub.reach("a/b") is hub.Reach.CACHED


def test_a_configuration_is_not_looked_for_without_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A download would be tried six times, with lines on standard error; what the cache has needs no hub."""

    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("asked for a download")

    answering(monkeypatch, Offline("no route"))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    asked: list[str] = []
    monkeypatch.setattr(hub, "reach", lambda name, reach=hub.reach: (asked.append(name), reach(name)))
    assert hub.configuration("a/b") == {}
    assert asked == ["a/b"]
    held = tmp_path / "config.json"
    held.write_text('{"model_type": "llada"}')
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(held))
    assert hub.configuration("a/b") == {"model_type": "llada"}
    assert asked == ["a/b"]


def test_downloads_report_files_and_keep_errors_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a failed download the next source is tried; the caller explains a full disk."""
    got: list[str] = []

    def fetch(repository: str, name: str, *, local_dir: Path) -> None:
        got.append(name)
        (local_dir / name).write_text(repository)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    seen: list[tuple[str, int, int | None]] = []
    hub.download("a/b", ["x", "y"], tmp_path, lambda *report: seen.append(report))
    assert got == ["x", "y"]
    assert seen == [("download a/b", 0, 2), ("download a/b", 1, 2)]

    def fail(*args: Any, error: Exception, **options: Any) -> None:
        raise error

    for error, expected in ((Offline("reset"), SourceUnavailable), (OSError(errno.ENOSPC, "full"), OSError)):
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *a, e=error, **o: fail(error=e))
        with pytest.raises(expected):
            hub.download("a/b", ["x"], tmp_path, silent)


@pytest.mark.parametrize(
    ("published", "chosen"),
    [
        (["config.json", "model.safetensors", "model-1-of-2.safetensors"], ["model.safetensors"]),
        (
            ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors", "onnx/model.safetensors"],
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        ),
        (["pytorch_model.bin", "consolidated.safetensors"], []),
    ],
)
def test_weights_are_fetched_with_progress(
    monkeypatch: pytest.MonkeyPatch, published: list[str], chosen: list[str]
) -> None:
    """Only the files that transformers reads are fetched, at the listed revision; progress counts bytes."""
    files = [SimpleNamespace(rfilename=name, size=10) for name in published]

    def model_info(self: Any, repository: str, **options: Any) -> Any:
        return SimpleNamespace(siblings=files, sha="abc")

    got: list[tuple[str, str]] = []
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda repository, name, *, revision: got.append((name, revision))
    )
    seen: list[tuple[str, int, int | None]] = []
    hub.fetch_weights("a/b", lambda *report: seen.append(report))
    assert got == [(name, "abc") for name in chosen]
    assert seen == [("download a/b", 10 * index, 10 * len(chosen)) for index in range(len(chosen))]


def test_a_full_disk_while_weights_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache is another folder than ours, so the error names the setting of the hub."""

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", full)
    with pytest.raises(ModelError, match="the disk is full") as caught:
        hub.fetch_weights("a/b", silent)
    assert "HF_HOME" in caught.value.remedy
