"""Reader of the metadata of a GGUF file, and of the tokenizer in it."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from structgen.engine.tokenizers.model_file import SPACE_MARK, TokenizerJsonEncoder
from structgen.engine.tokenizers.piece_bytes import byte_or_text, from_byte_level
from structgen.engine.tokenizers.table import Encoder, TokenTable, token_slots
from structgen.errors import VocabularyError

__all__ = ["MAGIC", "GGUFLayout", "GGUFTensor", "read_gguf", "read_gguf_header", "read_gguf_layout"]

MAGIC = b"GGUF"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH_BYTES = {2: 8, 3: 8}  # by version; version 1 was gone within weeks
_COUNTS_END = 24


def read_gguf_header(path: Path) -> dict[str, object]:
    """Read the metadata of a GGUF file; strings stay bytes, because a token need not be valid UTF-8.

    Raises:
        VocabularyError: the file is cut short, or of a version that is not 2 or 3.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).header()
        except (struct.error, KeyError, ValueError, UnicodeDecodeError) as error:
            raise VocabularyError(
                f"GGUF file {path.name!r}",
                "its metadata cannot be read",
                evidence=f"{type(error).__name__}: {error}",
                remedy="check that the file is complete and of GGUF version 2 or 3",
            ) from error


class GGUFTensor(NamedTuple):
    """A tensor of a GGUF file: its name, dimensions (the innermost first), type, and place in the data."""

    name: bytes
    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFLayout(NamedTuple):
    """The parts of a GGUF file.

    Attributes:
        metadata: from the first byte after the counts to before the first tensor's description.
        entries: their number.
        tensors: in the order of the file.
        data: the byte to which the tensors' offsets are relative.
        alignment: of offsets, in bytes.
    """

    metadata: bytes
    entries: int
    tensors: tuple[GGUFTensor, ...]
    data: int
    alignment: int


def read_gguf_layout(data: mmap.mmap) -> GGUFLayout:
    """Return the parts of a GGUF file of version 2 or 3, of a little-endian machine.

    Raises:
        struct.error, KeyError, ValueError: it is damaged.
    """
    reader = _Reader(data)
    metadata = reader.header()
    end = reader.at
    tensors = tuple(reader.tensor() for _ in range(reader.tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment!r}")
    start = -(-reader.at // alignment) * alignment
    return GGUFLayout(bytes(data[_COUNTS_END:end]), len(metadata), tensors, start, alignment)


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = len(MAGIC)
        self._order = "<"
        self.tensors = 0

    def tensor(self) -> GGUFTensor:
        name = self._string()
        shape = tuple(self._length() for _ in range(self._length("I")))
        return GGUFTensor(name, shape, self._length("I"), self._length())

    def header(self) -> dict[str, object]:
        version = self._scalar("I")
        if version == 3 << 24:
            self._order, version = ">", 3
        if version not in _LENGTH_BYTES:
            raise ValueError(f"GGUF version {version}")
        self.tensors = self._length()
        entries: dict[str, object] = {}
        for _ in range(self._length()):
            key = self._string().decode()
            entries[key] = self._value(self._length("I"))
        return entries

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from(self._order + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def _length(self, code: str = "Q") -> int:
        return int(self._scalar(code))

    def _string(self) -> bytes:
        length = self._length()
        end = self.at + length
        if end > len(self._data):
            raise ValueError(f"a string at byte {self.at} ends beyond the file")
        value = self._data[self.at : end]
        self.at = end
        return value

    def _strings(self, count: int) -> list[object]:
        """As ``_string``, ``count`` times; a file has some hundred thousand, so nothing is looked up twice."""
        data, at, size = self._data, self.at, len(self._data)
        read = struct.Struct(self._order + "Q").unpack_from
        found: list[object] = []
        for _ in range(count):
            (length,) = read(data, at)
            at += 8
            if at + length > size:
                raise ValueError(f"a string at byte {at} ends beyond the file")
            found.append(data[at : at + length])
            at += length
        self.at = at
        return found

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[object]:
        kind, count = self._length("I"), self._length()
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            raise ValueError("an array of arrays")
        code = _SCALARS[kind]
        end = self.at + count * struct.calcsize("<" + code)
        if end > len(self._data):
            raise ValueError(f"an array at byte {self.at} ends beyond the file")
        values = struct.unpack_from(f"{self._order}{count}{code}", self._data, self.at)
        self.at = end
        return list(values)


_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_MAX_PADDING = 1 << 20  # ids without a token; models have some hundreds
_BYTE_LEVEL = "gpt2"
_SPACE_MARKED = ("llama", "t5", "bert")  # bert: llama.cpp writes "##x" as "x" and "x" as "▁x"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(regex: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


_BYTES_ONLY = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_GPT2 = {**_BYTES_ONLY, "use_regex": True}
_SPLITTERS: dict[str, list[dict[str, object]]] = {
    "gpt-2": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "llama-bpe": [_split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"), _BYTES_ONLY],
    "qwen2": [_split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"), _BYTES_ONLY],
}


def read_gguf(path: Path) -> TokenTable:
    """Read the tokenizer of a GGUF file.

    Raises:
        VocabularyError: the metadata is malformed, or its kind of tokenizer is not supported.
    """
    header = read_gguf_header(path)
    prefix = "tokenizer.ggml."
    settings = {key.removeprefix(prefix): value for key, value in header.items() if key.startswith(prefix)}
    subject = f"GGUF file {path.name!r}"
    kind, pieces, types = _name(settings, "model"), settings.get("tokens"), settings.get("token_type")
    if kind != _BYTE_LEVEL and kind not in _SPACE_MARKED:
        raise VocabularyError(
            subject,
            f"its tokenizer is of the kind {kind!r}" if kind else "it holds no tokenizer",
            remedy=f"supported are {', '.join((_BYTE_LEVEL, *_SPACE_MARKED))}; or load its tokenizer.json",
        )
    if not isinstance(pieces, list) or not all(isinstance(piece, bytes) for piece in pieces):
        raise VocabularyError(subject, "it lists no tokens", remedy="check that the file is complete")
    if not isinstance(types, list) or len(types) != len(pieces):
        types = [1] * len(pieces)
    tokens, special = _tokens(subject, kind, pieces, types)
    eos = tuple(dict.fromkeys(token for key in _EOS_KEYS if isinstance(token := settings.get(key), int)))
    encode = _encoder(subject, settings, pieces, types) if kind == _BYTE_LEVEL else None
    return TokenTable(tokens, special, eos, _head_width(subject, header, len(tokens)), encode=encode)


def _name(settings: Mapping[str, object], key: str) -> str:
    value = settings.get(key)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _tokens(subject: str, kind: str, pieces: list[bytes], types: list[int]) -> tuple[tuple[bytes, ...], dict[int, str]]:
    slots = token_slots(subject, list(range(len(pieces))))
    special: dict[int, str] = {}
    for token, (piece, role) in enumerate(zip(pieces, types, strict=True)):
        if role in {_CONTROL, _UNKNOWN}:
            special[token] = piece.decode("utf-8", "replace")
        elif role == _USER_DEFINED:
            slots[token] = piece
        elif role == _BYTE:
            spelled = byte_or_text(piece.decode("utf-8", "replace"))
            slots[token] = spelled if isinstance(spelled, bytes) else b""
        elif role != _UNUSED:
            slots[token] = _normal(kind, piece)
    return tuple(slots), special


def _normal(kind: str, piece: bytes) -> bytes:
    if kind != _BYTE_LEVEL:
        return piece.replace(SPACE_MARK.encode(), b" ")
    try:
        return from_byte_level(piece.decode())
    except UnicodeDecodeError:  # not in the alphabet: plain text
        return piece


def _head_width(subject: str, header: Mapping[str, object], tokens: int) -> int | None:
    architecture = header.get("general.architecture")
    name = architecture.decode("utf-8", "replace") if isinstance(architecture, bytes) else ""
    width = header.get(f"{name}.vocab_size")
    if isinstance(width, int) and width > tokens + _MAX_PADDING:
        raise VocabularyError(
            subject,
            "its head is much wider than its tokens",
            evidence=f"{name}.vocab_size is {width:,}, and there are {tokens:,} tokens",
            remedy="check that the file is complete",
        )
    return width if isinstance(width, int) else None


def _encoder(subject: str, settings: Mapping[str, object], pieces: list[bytes], types: list[int]) -> Encoder | None:
    """Return the encoder of the file's byte-level BPE, None if its splitter is unknown."""
    splitter, merges = _name(settings, "pre") or "gpt-2", settings.get("merges")
    if splitter not in _SPLITTERS or not isinstance(merges, list):
        return None
    damaged = next((merge for merge in merges if not isinstance(merge, bytes)), None)
    if damaged is not None:
        raise VocabularyError(
            subject,
            "a merge is no text",
            evidence=f"found {damaged!r:.60}",
            remedy="check that the file is complete",
        )
    return TokenizerJsonEncoder(partial(_tokenizer_json, splitter, pieces, types, merges))


def _tokenizer_json(splitter: str, pieces: list[bytes], types: list[int], merges: list[bytes]) -> bytes:
    """Write the tokenizer as a tokenizer.json."""
    vocab: dict[str, int] = {}
    added: list[dict[str, object]] = []
    flags = {"special": False, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    for token, piece in enumerate(pieces):
        text = piece.decode("utf-8", "replace")
        vocab.setdefault(text, token)
        if types[token] == _USER_DEFINED:
            added.append({"id": token, "content": text, **flags})
    model = {
        "type": "BPE",
        "vocab": vocab,
        "merges": [merge.decode("utf-8", "replace") for merge in merges],
        "ignore_merges": splitter == "llama-bpe",
    }
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _SPLITTERS[splitter]},
        "decoder": _BYTES_ONLY,
        "model": model,
    }
    return json.dumps(spec, ensure_ascii=False).encode()
