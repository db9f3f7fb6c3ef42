"""Folders and files: which file is read, and what the files beside it add."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_run import run_page
from hypothesis import HealthCheck, given, settings, strategies as st

import structgen.models
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
PIECES = ["<s>", "</s>", "a", "b", "Ġ", "<call>", "c"]
TOKENIZER = {
    "added_tokens": [
        {"id": 0, "content": "<s>", "special": True, **FLAGS},
        {"id": 5, "content": "<call>", "special": False, **FLAGS},
        {"id": 7, "content": "<turn>", "special": True, **FLAGS},
    ],
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    "model": {"type": "BPE", "vocab": {piece: token for token, piece in enumerate(PIECES)}, "merges": []},
}
FILES: dict[str, Any] = {
    "tokenizer": TOKENIZER,
    "config": {"eos_token_id": [0, 1], "vocab_size": 9, "text_config": {"eos_token_id": 1, "vocab_size": 10}},
    "generation_config": {"eos_token_id": 1},
    "tokenizer_config": {
        "eos_token": {"content": "a"},
        "extra_special_tokens": {"image": "b"},
        "additional_special_tokens": ["a", {"content": "b"}],
        "added_tokens_decoder": {"8": {"content": "x", "special": True}},
    },
    "special_tokens_map": {"pad_token": "</s>"},
}
Folder = Callable[..., Path]


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path) -> Folder:
    def make(**files: object) -> Path:
        for name, content in ({"tokenizer": TOKENIZER} | files).items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return make


def test_the_page_on_vocabularies_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/reference/vocabularies.md loads a folder, and makes a vocabulary from bytes."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    monkeypatch.setattr(structgen.models, "embedded_folder", lambda: tmp_path)
    names = run_page("reference/vocabularies.md")
    assert names.blocks == 1
    assert names["vocabulary"].tokens[2] == b"a"
    assert (names["letters"].tokens, names["letters"].eos) == ((b"", b"a", b"ab"), (0,))


def test_a_folder_without_other_files_has_no_eos(folder: Folder) -> None:
    """The EOS is not inferred from the names of tokens."""
    vocabulary = Vocabulary.load(folder())
    assert vocabulary.eos == ()
    assert vocabulary.tokens == (b"", b"</s>", b"a", b"b", b" ", b"<call>", b"c", b"")


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"tokenizer_config": {"eos_token": "</s>"}}, (1,)),
        ({"tokenizer_config": {"eos_token": {"content": "</s>", "__type": "AddedToken"}}}, (1,)),
        ({"special_tokens_map": {"eos_token": {"content": "<turn>"}}}, (7,)),
        ({"generation_config": {"eos_token_id": [7, 1]}}, (7, 1)),
        ({"config": {"eos_token_id": 1}}, (1,)),
        ({"config": {"text_config": {"eos_token_id": 7}}}, (7,)),
        ({"config": {"eos_token_id": None}, "generation_config": {"eos_token_id": -1}}, ()),
        (
            {
                "generation_config": {"eos_token_id": [7]},
                "config": {"eos_token_id": 7},
                "tokenizer_config": {"eos_token": "</s>"},
            },
            (7, 1),
        ),
    ],
)
def test_eos_ids_come_from_every_file_that_names_one(
    folder: Folder, files: dict[str, object], eos: tuple[int, ...]
) -> None:
    """Chat models end a turn with one token and a text with another; all of them end the output."""
    vocabulary = Vocabulary.load(folder(**files))
    assert vocabulary.eos == eos
    assert all(vocabulary.tokens[token] == b"" and token in vocabulary.special for token in eos)


def test_own_eos_replaces_those_of_the_files(folder: Folder) -> None:
    """It may be given by id or by text; a wrong name in the files does not matter then."""
    path = folder(tokenizer_config={"eos_token": "<missing>"})
    assert Vocabulary.load(path, eos=["<turn>", 1]).eos == (7, 1)
    with pytest.raises(VocabularyError, match="no token '<missing>' to end an output"):
        Vocabulary.load(path)


def test_an_eos_id_beyond_the_tokenizer_is_an_error(folder: Folder) -> None:
    """It is accepted if the head of the model is wide enough for it."""
    with pytest.raises(VocabularyError, match="eos id 99 is out of range"):
        Vocabulary.load(folder(generation_config={"eos_token_id": 99}))
    vocabulary = Vocabulary.load(folder(config={"vocab_size": 128}))
    assert (vocabulary.eos, vocabulary.size) == ((99,), 128)


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_config": {"pad_token": "c"}},
        {"tokenizer_config": {"additional_special_tokens": ["c"]}},
        {"tokenizer_config": {"extra_special_tokens": {"image_token": "c"}}},
        {"special_tokens_map": {"additional_special_tokens": [{"content": "c"}]}},
        {"tokenizer_config": {"added_tokens_decoder": {"6": {"content": "c", "special": True}}}},
    ],
)
def test_special_tokens_come_from_every_file_too(folder: Folder, config: dict[str, object]) -> None:
    """A token that any file calls special is not text."""
    vocabulary = Vocabulary.load(folder(**config))
    assert vocabulary.special[6] == "c"
    assert vocabulary.tokens[6] == b""
    with pytest.raises(VocabularyError, match="byte 0x63"):
        vocabulary.tokenize("c")


def test_tokens_that_only_the_configuration_lists_are_added(folder: Folder) -> None:
    """They come after the tokens of tokenizer.json, as text or special."""
    added = {
        "8": {"content": "<x>", "special": False},
        "10": {"content": "<y>", "special": True},
        "2": {"content": "other", "special": False},
        "1" * 5000: {"content": "<z>"},
        "²": {"content": "<z>"},
    }
    vocabulary = Vocabulary.load(folder(tokenizer_config={"added_tokens_decoder": added}))
    assert vocabulary.tokens[7:] == (b"", b"<x>", b"", b"")
    assert vocabulary.special[10] == "<y>"
    assert vocabulary.tokens[2] == b"a"


@pytest.mark.parametrize(("width", "size"), [(16, 16), (8, 8), (3, 8), (True, 8), ("16", 8)])
def test_the_head_may_be_wider_than_the_tokenizer(folder: Folder, width: object, size: int) -> None:
    """A smaller number in config.json is ignored; ``size=`` always decides."""
    path = folder(config={"vocab_size": width})
    assert Vocabulary.load(path).size == size
    assert Vocabulary.load(path, size=20).size == 20
    assert Vocabulary.load(path, size=4).tokens == (b"", b"</s>", b"a", b"b")


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config", "special_tokens_map"])
@pytest.mark.parametrize("content", ["[1]", "{", "[" * 100_000])
def test_malformed_files_are_named(folder: Folder, name: str, content: str) -> None:
    """They are not skipped."""
    path = folder()
    (path / f"{name}.json").write_text(content)
    with pytest.raises(VocabularyError, match=f"{name}.json: it is not"):
        Vocabulary.load(path)


def test_files_beside_a_tokenizer_file_count_too(folder: Folder) -> None:
    """The path of the file means the same as the path of its folder."""
    path = folder(tokenizer_config={"eos_token": "</s>"})
    assert Vocabulary.load(path / "tokenizer.json") == Vocabulary.load(path) == Vocabulary.load(str(path))


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """Nothing is downloaded."""
    with pytest.raises(VocabularyError, match="there is no file or folder"):
        Vocabulary.load("some-organisation/some-model")
    with pytest.raises(VocabularyError, match="there is no file or folder"):
        Vocabulary.load(tmp_path / "missing")


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    """The error lists the files that are there and those that should be."""
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(VocabularyError, match=r"found 'vocab\.txt'; it should hold one of tokenizer\.json"):
        Vocabulary.load(tmp_path)


def test_a_folder_with_two_models_is_an_error(tmp_path: Path) -> None:
    """Nothing decides between them."""
    for name in ("one.model", "two.model"):
        (tmp_path / name).write_bytes(b"\n\x05\n\x03abc")
    with pytest.raises(VocabularyError, match=r"holds 2 tokenizers; found 'one\.model', 'two\.model'"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"just text", b'{"vocab": {"a": 1}}', b"\x00" * 64])
def test_unknown_formats_say_what_was_found(tmp_path: Path, content: bytes) -> None:
    """The error also says which formats are supported."""
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(content)
    with pytest.raises(VocabularyError, match=r"begins with b.*; pass a tokenizer object of transformers"):
        Vocabulary.load(path)


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The path of every value inside a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(inner, (*path, key))
    return found


junk = st.recursive(
    st.sampled_from([None, True, -1, 0, 3, 1.5, 2**70, "", "a", "Sequence", "ByteFallback", "Unigram", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "content", "a"]), inner),
    max_leaves=4,
)


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(places(FILES)), value=junk)
def test_any_value_in_any_place_is_read_or_refused(folder: Folder, place: tuple[Any, ...], value: object) -> None:
    """No other exception comes, whatever a file holds in any place."""
    files = copy.deepcopy(FILES)
    *outer, last = place
    node = files
    for key in outer:
        node = node[key]
    node[last] = value
    try:
        vocabulary = Vocabulary.load(folder(**files))
    except VocabularyError:
        return
    assert vocabulary.decode(range(vocabulary.size)) == b"".join(vocabulary.tokens)


class NoTokenizer:
    """An object of a class that nobody knows."""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (None, "the source is no tokenizer; found None; pass"),
        (5, "the source is no tokenizer; found 5; pass"),
        (b"bytes", "the source is no tokenizer; found bytes; pass"),
        ({"a": 1}, "the source is no tokenizer; found a dict; pass"),
        (Vocabulary, "the source is no tokenizer; found the type Vocabulary; pass"),
        (NoTokenizer(), r"a \S*test_folder.NoTokenizer is no tokenizer that can be read; pass"),
    ],
)
def test_unknown_objects_are_named(source: object, text: str) -> None:
    """The error names them, or their type."""
    with pytest.raises(VocabularyError, match=f"vocabulary: {text}"):
        Vocabulary.load(source)
