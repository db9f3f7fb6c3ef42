"""What wheels promise: one place for what is not portable, words for wrong interpreters, and versions that agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import structgen

CHECKOUT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = CHECKOUT / "kernels/native"
PROJECT: Final = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
# Extensions of compilers, headers of systems, and questions which of them this is.
NOT_PORTABLE: Final = re.compile(
    r"__builtin_|__attribute__|\[\[gnu::|__forceinline|__declspec|__int128|#\s*pragma (?!once)|"
    r"#include <(?:unistd|dlfcn|sched|pthread|windows|signal|immintrin|sys/\w+|\w+intrin)(?:\.h)?>|"
    r"#\s*(?:if|ifdef|ifndef|elif)\b.*\b_*(?:GNUC|clang|MSC_VER|linux|APPLE|WIN32|unix|x86_64|aarch64|EMSCRIPTEN|GLIBC)_*\b"
)
# Whether `long` has 64 bits, and what else differs beside extensions, is found by compilers.
ISO_FILES: Final = (
    "attention/openmp",
    "attention/own_attention",
    "base/portable",
    "base/thread_pool",
    "diffusion/chart",
    "diffusion/chart_table",
    "diffusion/class_scores",
    "masks/row",
    "products/digits",
    "terms/term",
)


def test_what_is_not_portable_is_in_one_file() -> None:
    """Extensions of a compiler and calls of a system are used in ``base/portable`` alone."""
    found = [
        f"{path.relative_to(NATIVE)}:{number}: {line.strip()}"
        for path in sorted(NATIVE.rglob("*.*"))
        if path.stem != "portable"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NOT_PORTABLE.search(line.split("//")[0])
    ]
    assert found == []
    here = (NATIVE / "base/portable.h").read_text(encoding="utf-8") + (NATIVE / "base/portable.cpp").read_text(
        encoding="utf-8"
    )
    assert len(NOT_PORTABLE.findall(here)) > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ISO_FILES)
def test_other_compilers_get_iso_code(name: str) -> None:
    """Without the extensions, what needs them compiles as C++20, without a warning."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler called c++")
    words = ["-std=c++20", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-DSTRUCTGEN_ISO", "-fsyntax-only"]
    done = subprocess.run(
        [compiler, *words, "-Wno-unknown-pragmas", f"-I{NATIVE}", str(NATIVE / f"{name}.cpp")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def _error(program: str, folder: Path) -> str:
    """The last line that a program writes to stderr, which must be an ImportError."""
    words = [sys.executable, "-I", "-S", "-c", program, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: structgen: "), done.stderr
    return last


@pytest.mark.parametrize("files", [(), ("_native.abi3.so",)])
def test_an_interpreter_without_its_engine_is_told(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Where the engine is missing or of others, the error names the interpreter, what is there, and the remedy."""
    package = tmp_path / "structgen_kernels"
    package.mkdir()
    shutil.copy(CHECKOUT / "kernels/structgen_kernels/__init__.py", package)
    for name in files:
        (package / name).write_bytes(b"no engine")
    text = _error("import sys; sys.path.insert(0, sys.argv[1]); from structgen_kernels import _native", tmp_path)
    assert ".".join(map(str, sys.version_info[:3])) in text
    assert f"installed is {', '.join(files) or 'none'} (" in text
    assert f"{sys.executable} -m pip install --force-reinstall structgen-lm" in text


def test_an_old_python_is_told() -> None:
    """pip refuses older versions; where it was not asked, the first import does."""
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    package = Path(structgen.__file__).resolve().parents[1]
    program = "import sys; sys.path.insert(0, sys.argv[1]); sys.version_info = (3, 10, 9); import structgen"
    assert "Python 3.11 or newer is needed" in _error(program, package)


def test_versions_agree() -> None:
    """The version of the package is that of its citation, and the changelog has a section for what is released."""
    version = PROJECT["project"]["version"]
    citation = (CHECKOUT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [version]
    sections = re.findall(r"^## \[(.*?)\]", (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert version in sections or sections == ["Unreleased"]


def test_supported_interpreters_have_wheels() -> None:
    """Each version of the classifiers is built or served by the stable ABI; one wheel is for threads without a lock."""
    stated = [line.split(" :: ")[-1] for line in PROJECT["project"]["classifiers"] if line.count(" :: ") == 2]
    versions = [f"cp{one.replace('.', '')}-*" for one in stated if re.fullmatch(r"3\.\d+", one)]
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert versions == [one for one in built if "t-" not in one]
    assert [one for one in built if "t-" in one]
    assert PROJECT["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"


def test_actions_are_named_by_the_hash_of_a_commit() -> None:
    """A tag of an action may be moved to other code; a commit may not."""
    used = [
        line.split("uses:")[1].strip()
        for path in sorted((CHECKOUT / ".github/workflows").glob("*.yml"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", one)] == []
    assert len({one.split("@")[0] for one in used}) == len(set(used)), "one action has two versions"


def test_only_the_release_may_write() -> None:
    """Jobs read; the one that publishes waits for all that build, and is trusted by name, without a password."""
    yaml = pytest.importorskip("yaml")
    for path in sorted((CHECKOUT / ".github/workflows").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        jobs: dict[str, Any] = yaml.safe_load(text)["jobs"]
        writing = [name for name, job in jobs.items() if "write" in job["permissions"].values()]
        assert writing == (["publish"] if path.name == "wheels.yml" else [])
        assert all(job["timeout-minutes"] <= 150 for job in jobs.values())
        assert "secrets." not in text
        for name in writing:
            assert set(jobs[name]["needs"]) == set(jobs) - {name}
            assert jobs[name]["permissions"]["id-token"] == "write"
            assert "refs/tags/v" in jobs[name]["if"]
