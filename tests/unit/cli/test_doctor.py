"""``structgen doctor``: what is missing, too old or broken is reported with a remedy, and never raised."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from structgen.cli import doctor as doctor_module
from structgen.cli.main import main

Report = tuple[int, dict[tuple[str, str], dict[str, Any]]]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Report]:
    """Run the command, and return the exit status and the findings by section and name.

    The probe prints ``probe`` in place of importing torch, which takes seconds.
    """

    def run(probe: str = "print('{}')") -> Report:
        monkeypatch.setattr(doctor_module, "_PROBE", probe)
        status = main(["doctor", "--json"])
        held = json.loads(capsys.readouterr().out)
        assert held["works"] == (status == 0)
        return status, {(each["section"], each["name"]): each for each in held["findings"]}

    return run


def test_versions_are_those_installed(report: Callable[..., Report]) -> None:
    """Each package of each extra is listed with its version, by metadata alone."""
    status, found = report()
    assert status == 0
    assert found["base", "python"]["value"].startswith(".".join(map(str, sys.version_info[:3])))
    assert found["base", "numpy"]["value"] == importlib.metadata.version("numpy")
    for extra in ("models", "tokenizers", "remote", "monitors", "references"):
        assert any(section == extra for section, _ in found), extra
    assert all(each["status"] == "ok" for (section, _), each in found.items() if section == "base")


def test_missing_and_old_packages_have_a_remedy(report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or old package of an extra is no failure; one of the base is."""
    true_version = importlib.metadata.version
    fake = {"httpx": None, "jinja2": "3.0.9", "lark": "1.10"}

    def version(name: str) -> str:
        if name not in fake:
            return true_version(name)
        held = fake[name]
        if held is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return held

    monkeypatch.setattr(importlib.metadata, "version", version)
    status, found = report()
    assert status == 0
    assert found["remote", "httpx"]["status"] == "missing"
    assert found["remote", "httpx"]["remedy"] == "pip install 'structgen-lm[remote]'"
    assert found["models", "jinja2"]["status"] == "old"
    assert found["models", "jinja2"]["value"] == "3.0.9, 3.1 is needed"
    assert found["base", "lark"]["status"] == "ok"  # 1.10 is newer than 1.2
    fake["numpy"] = None
    status, found = report()
    assert status == 1
    assert found["base", "numpy"]["remedy"] == "pip install structgen-lm"


@pytest.mark.parametrize(
    ("probe", "value"),
    [
        ("import os; os._exit(11)", "exit status 11"),
        ("raise OSError('libcudart.so.12 is missing')", "libcudart.so.12 is missing"),
        ("""print('x\\n{"torch": {"error": "OSError: no libtorch.so"}}')""", "no libtorch.so"),
    ],
)
def test_a_broken_import_is_reported(report: Callable[..., Report], probe: str, value: str) -> None:
    """A package that fails or crashes while it is imported is a finding, and the base still works."""
    status, found = report(probe)
    (broken,) = [each for each in found.values() if each["status"] == "broken"]
    assert status == 0
    assert value in broken["value"]
    assert broken["remedy"].startswith("pip install")


def test_a_slow_import_is_not_broken(report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes too long to import, on a busy machine for instance, is told without the probe's source."""

    def too_slow(command: list[str], *, timeout: int, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(doctor_module.subprocess, "run", too_slow)
    status, found = report()
    told = found["models on this machine", "import of torch"]
    assert (status, told["status"]) == (0, "note")
    assert told["value"] == "not done after 120 s, so it is not known whether it works"
    assert not any(each["status"] == "broken" for each in found.values())


def test_a_broken_package_of_the_base_fails(report: Callable[..., Report]) -> None:
    """The base does not work without numpy."""
    status, found = report("""print('{"numpy": {"error": "ImportError: no BLAS"}}')""")
    assert status == 1
    assert "no BLAS" in found["base", "numpy"]["value"]


def test_a_gpu_that_torch_cannot_use_is_reported(
    report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver without a build of torch for it is a problem; a machine without a GPU is none."""
    torch = {"version": "2.13", "threads": 3, "built for CUDA": None, "GPUs": [], "mps": False}
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: None)
    _, found = report(f"print({json.dumps({'torch': torch})!r})")
    assert found["models on this machine", "GPU"]["status"] == "note"
    assert found["models on this machine", "threads of torch"]["value"] == "3"
    assert found["machine", "C compiler"]["value"] == "none"
    monkeypatch.setattr(doctor_module.shutil, "which", lambda name: f"/usr/bin/{name}")
    _, found = report(f"print({json.dumps({'torch': torch})!r})")
    assert found["models on this machine", "GPU"]["status"] == "broken"
    torch["GPUs"] = ["H100"]
    _, found = report(f"print({json.dumps({'torch': torch})!r})")
    assert found["models on this machine", "GPU"]["value"] == "H100"


def test_the_cache(report: Callable[..., Report], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder need not exist and is not made; one that cannot be written, and a damaged model, are problems."""
    cache = tmp_path / "a" / "cache"
    monkeypatch.setenv("STRUCTGEN_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    _, found = report()
    assert found["caches", "cache"]["status"] == "ok"
    assert "will be made" in found["caches", "cache"]["value"]
    assert "not there" in found["caches", "embedded model"]["value"]
    assert found["machine", "HF_HUB_OFFLINE"]["value"] == "1"
    assert found["machine", "STRUCTGEN_CACHE"]["value"] == str(cache)
    assert not cache.parent.exists()
    (cache / "models" / "smollm2-135m-instruct").mkdir(parents=True)
    assert report()[1]["caches", "embedded model"]["status"] == "broken"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "file" / "cache"))
    status, found = report()
    assert status == 0
    assert found["caches", "cache"]["status"] == "broken"
    monkeypatch.setenv("STRUCTGEN_CACHE", "")
    assert report()[1]["caches", "cache"]["value"] == "turned off"


def test_the_probe_says_what_torch_says() -> None:
    """The probe prints one line of JSON with the version of each package that can be imported."""
    names = ("torch", "transformers")
    for name in names:
        pytest.importorskip(name)
    command = [sys.executable, "-c", f"import importlib.util\n{doctor_module._PROBE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held = json.loads(done.stdout.strip().rpartition("\n")[2])
    for name in names:
        assert held[name]["version"].partition("+")[0] == importlib.metadata.version(name).partition("+")[0]
    assert held["torch"]["threads"] >= 1


def test_the_text_has_every_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each finding, under the heading of its section, without colours in a pipe."""
    monkeypatch.setattr(doctor_module, "_PROBE", "print('{}')")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "base"
    assert any(line.split()[:2] == ["ok", "numpy"] for line in lines)
    assert "\x1b" not in "".join(lines)
