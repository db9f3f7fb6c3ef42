"""The disk cache: whole entries or none, bounded, and never a cause of failure."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from structgen import cache as disk_cache
from structgen.engine.tokenizers import model_file as tokenizer_json
from structgen.engine.tokenizers.table import TokenTable, read_cached
from structgen.engine.vocabulary import Vocabulary

LARGE = bytes(range(256)) * 512


@pytest.fixture(name="folder", autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def table(data: bytes) -> TokenTable:
    special = {2: "<end>", 3: 'quote " and é'}
    return TokenTable((b"", data[:3], b"\xff\x00", b"", b"x" * 300), special, notes={"pattern": "\\p{L}"})


def test_what_is_kept_is_fetched(folder: Path) -> None:
    """An entry is found by its kind and key, in a folder that only the user can read."""
    assert disk_cache.fetch("kind", "key") is None
    assert disk_cache.keep("kind", "key", LARGE)
    assert disk_cache.fetch("kind", "key") == LARGE
    assert disk_cache.fetch("kind", "other") is None
    assert disk_cache.fetch("other", "key") is None
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("place", [0, 20, 60, -1])
def test_a_changed_byte_is_a_miss(folder: Path, place: int) -> None:
    """The entry is removed, wherever the damage is."""
    disk_cache.keep("kind", "key", LARGE)
    (path,) = folder.glob("*.bin")
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert disk_cache.fetch("kind", "key") is None
    assert not path.exists()


@pytest.mark.parametrize("length", [0, 5, 40, 60, 1000])
def test_a_cut_entry_is_a_miss(folder: Path, length: int) -> None:
    """This happens when the disk is full."""
    disk_cache.keep("kind", "key", LARGE)
    (path,) = folder.glob("*.bin")
    path.write_bytes(path.read_bytes()[:length])
    assert disk_cache.fetch("kind", "key") is None


def test_an_unusable_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in its place, a folder in the place of an entry, no home folder, or a disabled cache raises nothing."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "file"))
    assert not disk_cache.keep("kind", "key", LARGE)
    assert disk_cache.fetch("kind", "key") is None
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "kind-key.bin").mkdir(parents=True)
    assert not disk_cache.keep("kind", "key", LARGE)
    assert disk_cache.fetch("kind", "key") is None
    assert not list((tmp_path / "cache").glob(".writing-*"))
    monkeypatch.setenv("STRUCTGEN_CACHE", "")
    assert disk_cache.folder() is None
    assert not disk_cache.keep("kind", "key", LARGE)
    assert disk_cache.fetch("kind", "key") is None


def test_the_folder_is_of_the_user_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is where the platform keeps caches, or None without a home folder."""

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("STRUCTGEN_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / "structgen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert disk_cache.folder() == Path.home() / ".cache" / "structgen"
    monkeypatch.setattr("sys.platform", "darwin")
    assert disk_cache.folder() == Path.home() / "Library" / "Caches" / "structgen"
    monkeypatch.setattr(Path, "home", no_home)
    assert disk_cache.folder() is None


def test_the_entries_used_longest_ago_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch counts as use; the entry just written stays."""
    for age, key in enumerate("abc"):
        disk_cache.keep("kind", key, LARGE)
        os.utime(folder / f"kind-{key}.bin", (1000 + age, 1000 + age))
    assert disk_cache.fetch("kind", "a") == LARGE
    monkeypatch.setattr(disk_cache, "MAX_FOLDER_BYTES", 2 * len(LARGE) + 1000)
    disk_cache.keep("kind", "d", LARGE)
    assert sorted(path.name for path in folder.iterdir()) == ["kind-a.bin", "kind-d.bin"]


def test_entries_beyond_the_cap_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are neither written nor read."""
    disk_cache.keep("kind", "key", LARGE)
    monkeypatch.setattr(disk_cache, "MAX_ENTRY_BYTES", len(LARGE) - 1)
    assert not disk_cache.keep("kind", "other", LARGE)
    assert disk_cache.fetch("kind", "key") is None


def test_files_of_writers_that_died_are_removed(folder: Path) -> None:
    """They are removed after an hour; files of active writers stay."""
    folder.mkdir()
    for name, age in (("old", 7200), ("new", 10)):
        (folder / f".writing-{name}").write_bytes(b"half")
        os.utime(folder / f".writing-{name}", (time.time() - age,) * 2)
    disk_cache.keep("kind", "key", LARGE)
    assert sorted(path.name for path in folder.iterdir()) == [".writing-new", "kind-key.bin"]


def test_many_writers_do_not_disturb_each_other() -> None:
    """Every reader sees a whole entry or none."""

    def work(number: int) -> bool:
        disk_cache.keep("kind", str(number % 3), LARGE)
        return disk_cache.fetch("kind", str(number % 3)) in {None, LARGE}

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_a_kept_table_is_the_same_table() -> None:
    """Tokens, gaps, special tokens and notes are equal; the reader is not called again."""
    calls: list[bytes] = []

    def read(data: bytes) -> TokenTable:
        calls.append(data)
        return table(data)

    assert read_cached("test", LARGE, read) == read_cached("test", LARGE, read) == table(LARGE)
    assert len(calls) == 1
    read_cached("other", LARGE, read)
    read_cached("test", LARGE + b"x", read)
    assert len(calls) == 3


def test_small_files_are_not_kept(folder: Path) -> None:
    """Reading one again is faster than opening a file."""
    read_cached("test", b"abc", table)
    assert not folder.exists()


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x02\x00\x00\x00\x00\x00\x00\x00{}", b"\xff" * 64])
def test_a_payload_of_another_kind_is_read_again(folder: Path, payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if its checksum is right."""
    read_cached("test", LARGE, table)
    (path,) = folder.glob("*.bin")
    kind, _, key = path.stem.partition("-")
    disk_cache.keep(kind, key, payload)
    assert read_cached("test", LARGE, table) == table(LARGE)


def test_a_second_load_does_not_decode_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large tokenizer.json is decoded once; the cached table gives an equal vocabulary."""
    vocab = {f"Ġtoken{number}": number for number in range(8000)}
    spec = {"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    spec |= {"added_tokens": [{"id": 8000, "content": "<end>", "special": True}]}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    first = Vocabulary.load(path, eos=["<end>"])

    def never(data: bytes) -> TokenTable:
        raise AssertionError("decoded again")

    monkeypatch.setattr(tokenizer_json, "_decode", never)
    again = Vocabulary.load(path, eos=["<end>"])
    assert again == first
    assert again.tokens == first.tokens
