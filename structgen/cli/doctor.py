"""``structgen doctor``: what is installed, what is missing and how to get it, and where models and caches are."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final

import click

from structgen.cli.command import Command, output_options
from structgen.cli.terminal import DONE, FAILED
from structgen.errors import StructgenError
from structgen.progress import watched

__all__ = ["Finding", "doctor", "findings"]

Status: TypeAlias = Literal["ok", "note", "missing", "old", "broken"]

_DISTRIBUTION: Final = "structgen-lm"
_BASE: Final = "base"
_COLOURS: Final[dict[Status, str]] = {"ok": "green", "missing": "yellow", "old": "yellow", "broken": "red"}
_OFFLINE: Final = "HF_HUB_OFFLINE"
_VARIABLES: Final = (
    *("STRUCTGEN_CACHE", "STRUCTGEN_CACHE_MB", "HF_HOME", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "NO_COLOR"),
)
_REQUIREMENT: Final = re.compile(
    r"([A-Za-z0-9._-]+)[^;]*?(?:>=\s*([0-9.]+))?[^;]*(?:;.*extra == ['\"]([\w-]+)['\"].*)?"
)
_OTHER_PLATFORM: Final = re.compile(r"sys_platform == ['\"](\w+)['\"]")
_TIMEOUT_S: Final = 120
_BASE_PACKAGES: Final = ("numpy", "lark", "pydantic")


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        section: what it belongs to: ``base``, the name of an extra, or a subject.
        name: what it is.
        status: whether it works; ``note`` is a fact that is neither good nor bad.
        value: what was found.
        remedy: what to do; empty if there is nothing to do.
    """

    section: str
    name: str
    status: Status
    value: str
    remedy: str = ""


@click.command(cls=Command, examples=("structgen doctor", "structgen doctor --json | jq .works"))
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the findings as JSON.")
def doctor(*, as_json: bool) -> int:
    """Say what is installed, what is missing, and how to get it.

    Packages are listed by extra, with what to do about those that are missing, too old, or cannot be imported. Then
    come the folder of models and caches, the GPU, the compiler and the threads. Nothing is downloaded.

    Exit status: 0 the base works, so that descriptions can be compiled and checked; 1 it does not.
    """
    found: list[Finding] = []
    section = ""
    for finding in findings():
        found.append(finding)
        if not as_json:
            if finding.section != section:
                section = finding.section
                click.secho(section, bold=True)
            click.echo(_line(finding))
    works = all(finding.status not in ("missing", "old", "broken") for finding in found if finding.section == _BASE)
    if as_json:
        click.echo(json.dumps({"works": works, "findings": [asdict(finding) for finding in found]}, ensure_ascii=False))
    return DONE if works else FAILED


def _line(finding: Finding) -> str:
    mark = click.style(f"{'' if finding.status == 'note' else finding.status:<8}", fg=_COLOURS.get(finding.status))
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"  {mark}{finding.name:<26}{finding.value}{remedy}"


def findings() -> Iterator[Finding]:
    """Look at everything, the base first."""
    yield Finding(_BASE, "python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding(_BASE, "platform", "ok", platform.platform())
    extras: dict[str, list[tuple[str, str]]] = {_BASE: []}
    try:
        yield Finding(_BASE, "structgen", "ok", f"{importlib.metadata.version(_DISTRIBUTION)} at {_home()}")
        for requirement in importlib.metadata.requires(_DISTRIBUTION) or ():
            other = _OTHER_PLATFORM.search(requirement)
            match = _REQUIREMENT.fullmatch(requirement)
            if match is not None and (other is None or other[1] == sys.platform):
                extras.setdefault(match[3] or _BASE, []).append((match[1], match[2] or ""))
    except importlib.metadata.PackageNotFoundError:
        yield Finding(_BASE, "structgen", "note", f"run from {_home()}, not installed, so extras are not known")
    yield _engine()
    for extra, packages in extras.items():
        for package, least in packages:
            yield _package(extra, package, least)
    yield from _imports()
    yield from _caches()
    yield from _machine()


def _home() -> Path:
    return Path(__file__).resolve().parents[1]


def _engine() -> Finding:
    """Whether the compiled module loads and compiles something."""
    try:
        from structgen.engine import compile as compile_grammar
        from structgen.engine.analysis.byte_graph import byte_vocabulary
        from structgen.frontends.regex import regex

        grammar = regex("a+")
        works = compile_grammar(grammar, byte_vocabulary(grammar)).matcher().accept_bytes(b"aa") == 2
        module = importlib.import_module("structgen_kernels._native")
    except (ImportError, OSError, StructgenError) as error:
        return Finding(_BASE, "engine", "broken", _text(error), f"pip install --force-reinstall {_DISTRIBUTION}")
    return Finding(_BASE, "engine", "ok" if works else "broken", str(module.__file__))


def _package(extra: str, package: str, least: str) -> Finding:
    """Whether a package is there and new enough, by its metadata: nothing is imported."""
    remedy = "pip install " + (_DISTRIBUTION if extra == _BASE else f"'{_DISTRIBUTION}[{extra}]'")
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Finding(extra, package, "missing", "not installed", remedy)
    if _numbers(version) < _numbers(least):
        return Finding(extra, package, "old", f"{version}, {least} is needed", f"{remedy} --upgrade")
    return Finding(extra, package, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


_PROBE: Final = """
import importlib, json
found = {}
for name in ("numpy", "lark", "pydantic", "torch", "transformers", "triton"):
    if importlib.util.find_spec(name) is not None:
        try:
            module = importlib.import_module(name)
            found[name] = {"version": module.__version__}
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
if "version" in found.get("torch", {}):
    import torch
    torch_ = found["torch"]
    torch_["threads"] = torch.get_num_threads()
    torch_["built for CUDA"] = torch.version.cuda
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    torch_["GPUs"] = [torch.cuda.get_device_name(index) for index in range(count)]
    torch_["mps"] = bool(torch.backends.mps.is_available())
print("\\n" + json.dumps(found))
"""
"""Runs in a process of its own, so that a package that crashes while it is imported only ends that process."""


def _imports() -> Iterator[Finding]:
    """Whether the packages that take long to import can be, and what torch knows of the machine."""
    section = "models on this machine"
    command = [sys.executable, "-c", f"import importlib.util\n{_PROBE}"]
    try:
        with watched("import torch", always=True):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        held: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:  # slow is not broken: a cold disk or a busy machine
        value = f"not done after {_TIMEOUT_S} s, so it is not known whether it works"
        yield Finding(section, "import of torch", "note", value, "run it again when the machine is less busy")
        return
    except (OSError, ValueError) as error:
        value = f"the process that imports torch ended badly: {_text(error)}"
        if not isinstance(error, OSError):
            value = f"exit status {done.returncode}: {done.stderr.strip()[-200:]}"
        yield Finding(
            section, "import of torch", "broken", value, f"pip install --force-reinstall '{_DISTRIBUTION}[models]'"
        )
        return
    for name, facts in held.items():
        place = _BASE if name in _BASE_PACKAGES else section
        if "error" in facts:
            yield Finding(place, name, "broken", facts["error"][:300], f"pip install --force-reinstall {name}")
        elif place == section:
            yield Finding(section, name, "ok", f"{facts['version']} can be imported")
    torch = held.get("torch", {})
    if "GPUs" in torch:
        yield _gpu(section, torch)
        yield Finding(section, "threads of torch", "note", str(torch["threads"]))


def _gpu(section: str, torch: dict[str, Any]) -> Finding:
    if torch["GPUs"]:
        return Finding(section, "GPU", "ok", ", ".join(torch["GPUs"]))
    if torch["mps"]:
        return Finding(section, "GPU", "ok", "mps")
    if shutil.which("nvidia-smi") is not None:
        built = torch["built for CUDA"]
        why = "torch is built without CUDA" if built is None else f"torch, built for CUDA {built}, finds none"
        return Finding(section, "GPU", "broken", why, "install the build of torch that fits the driver (nvidia-smi)")
    return Finding(section, "GPU", "note", "none; models run on the CPU")


def _caches() -> Iterator[Finding]:
    """Where caches and the embedded model are."""
    from structgen.cache import folder

    section = "caches"
    where = folder()
    if where is None:
        yield Finding(section, "cache", "note", "turned off", "set STRUCTGEN_CACHE to a folder to keep models")
        return
    yield _writable(section, where)
    from structgen.models.llama.embedded import NAME
    from structgen.models.store import find_fault, model_folder

    path = model_folder(NAME)
    fault = find_fault(path) if path.exists() else None
    if not path.exists():
        value = "not there; the first run downloads it (93 MB)"
        yield Finding(section, "embedded model", "note", value)
    elif fault is None:
        yield Finding(section, "embedded model", "ok", str(path))
    else:
        yield Finding(section, "embedded model", "broken", f"{path}: {fault}", "the next run downloads it again")
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    hub = Path(hub).expanduser()
    models = len(list(hub.glob("models--*"))) if hub.is_dir() else 0
    yield Finding(section, "cache of the hub", "note", f"{hub}: {models} models")


def _writable(section: str, where: Path) -> Finding:
    """Whether files can be made in a folder, or in the one that it would be made in."""
    there = next((path for path in (where, *where.parents) if path.exists()), where)
    try:
        free = shutil.disk_usage(there).free >> 20
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        remedy = "set STRUCTGEN_CACHE to a folder that can be written"
        return Finding(section, "cache", "broken", f"{where}: cannot be written: {error.strerror or error}", remedy)
    made = "" if there == where else ", will be made"
    return Finding(section, "cache", "ok", f"{where}: can be written{made}, {free:,} MiB free")


def _machine() -> Iterator[Finding]:
    section = "machine"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(section, "processors", "note", f"{usable} of {os.cpu_count()} may be used")
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    if compiler is None:
        remedy = "install one to run Triton kernels on a GPU"
        yield Finding(section, "C compiler", "note", "none", remedy)
    else:
        yield Finding(section, "C compiler", "ok", compiler)
    yield Finding(section, _OFFLINE, "note", os.environ.get(_OFFLINE) or "not set: models are looked up on the hub")
    for name in _VARIABLES:
        if name in os.environ:
            yield Finding(section, name, "note", os.environ[name] or "(empty)")


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
