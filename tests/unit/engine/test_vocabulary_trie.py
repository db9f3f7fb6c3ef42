"""The native trie of a vocabulary: built once, kept on disk, rebuilt when the file is unusable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from structgen.engine.vocabulary import Vocabulary

TOKENS = [b"%05d" % number for number in range(5000)]


class CountingTrie:
    """Replaces the native trie and counts how often one is built."""

    built: ClassVar[list[int]] = []
    memory_bytes = 0

    def __init__(self, tokens: list[bytes]) -> None:
        assert type(tokens) is list
        self.tokens = tokens
        self.built.append(len(tokens))

    def drop_derived(self) -> None:
        """It derives nothing."""

    def to_bytes(self) -> bytes:
        return b"trie:" + b",".join(self.tokens)

    @staticmethod
    def from_bytes(data: bytes) -> CountingTrie:
        if not data.startswith(b"trie:"):
            raise ValueError("not a trie")
        trie = object.__new__(CountingTrie)
        trie.tokens = data[5:].split(b",")
        return trie


@pytest.fixture(name="folder", autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(name="native")
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the native module; return the file that it claims to be built as."""
    module, built = ModuleType("structgen_kernels._native"), tmp_path / "_native.so"
    built.write_bytes(b"build 1")
    module.__file__ = str(built)
    module.TokenTrie = CountingTrie  # type: ignore[attr-defined]
    package = ModuleType("structgen_kernels")
    package.__path__ = []
    package._native = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "structgen_kernels", package)
    monkeypatch.setitem(sys.modules, "structgen_kernels._native", module)
    CountingTrie.built.clear()
    yield built
    CountingTrie.built.clear()


def test_it_is_built_once(native: Path) -> None:
    """The first of many threads builds it."""
    vocabulary = Vocabulary(TOKENS)
    threads = [threading.Thread(target=lambda: vocabulary.trie) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert CountingTrie.built == [5000]
    assert vocabulary.trie is vocabulary.trie


def test_a_second_vocabulary_reads_the_kept_one(native: Path) -> None:
    """So would a second process; EOS ids that are not in the table make no difference."""
    first = Vocabulary(TOKENS, size=5001).trie
    again = Vocabulary(TOKENS, eos=[5000], size=5001).trie
    assert CountingTrie.built == [5001]
    assert again.tokens == first.tokens  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "other",
    [
        Vocabulary(TOKENS, size=5001),
        Vocabulary(TOKENS, eos=[7]),
        Vocabulary([*TOKENS[:-1], b"x"]),
        Vocabulary([b"0000", b"000001", *TOKENS[2:]]),
    ],
)
def test_other_tokens_have_another_trie(native: Path, other: Vocabulary) -> None:
    """This includes tables that differ only in token boundaries."""
    assert Vocabulary(TOKENS).trie.tokens != other.trie.tokens  # type: ignore[attr-defined]
    assert len(CountingTrie.built) == 2


def test_another_build_of_the_native_module_builds_again(native: Path) -> None:
    """Its format may have changed."""
    assert Vocabulary(TOKENS).trie
    native.write_bytes(b"another build")
    assert Vocabulary(TOKENS).trie
    assert CountingTrie.built == [5000, 5000]


def test_a_kept_trie_that_the_module_refuses_is_built_again(native: Path, folder: Path) -> None:
    """Wrong content with a right checksum is no reason to fail."""
    from structgen import cache as disk_cache

    assert Vocabulary(TOKENS).trie
    (path,) = folder.glob("trie-*.bin")
    kind, _, key = path.stem.partition("-")
    disk_cache.keep(kind, key, b"something else")
    assert Vocabulary(TOKENS).trie.tokens == TOKENS  # type: ignore[attr-defined]
    assert CountingTrie.built == [5000, 5000]


def test_small_vocabularies_are_not_kept(native: Path, folder: Path) -> None:
    """Building one takes less time than opening a file."""
    assert Vocabulary(TOKENS[:100]).trie.tokens == TOKENS[:100]  # type: ignore[attr-defined]
    assert not folder.exists()


def test_the_native_trie_survives_the_disk(folder: Path) -> None:
    """The real module reads back what it wrote."""
    pytest.importorskip("structgen_kernels._native", reason="the native engine is not built")
    vocabulary = Vocabulary([*TOKENS, b"", b"\xff\x00", b"0"], eos=[5000])
    first = vocabulary.trie.to_bytes()
    assert len(list(folder.glob("trie-*.bin"))) == 1
    again = Vocabulary([*TOKENS, b"", b"\xff\x00", b"0"], eos=[5000])
    assert again.trie.to_bytes() == first
