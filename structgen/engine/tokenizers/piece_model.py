"""A serialized SentencePiece model: its pieces with their scores, and what it does to a text before it looks for them.

Form: ``sentencepiece_model.proto`` of SentencePiece (T. Kudo and J. Richardson, 2018), a message of protocol buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from structgen.engine.tokenizers.split_pattern import unsupported

__all__ = ["Piece", "PieceModel", "read_piece_model"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the model
_TEXT, _SCORE, _KIND = 1, 2, 3  # of a piece
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK = 3, 24, 35  # of the trainer
_MAP, _STRIPS, _MARKS_SPACES = 2, 4, 5  # of the normalizer
_BPE: Final = 2
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
_KINDS: Final = {_USER: "user-defined", _UNUSED: "unused"}


class Piece(NamedTuple):
    """A piece that is text, or a byte.

    Attributes:
        token: its id.
        text: its text, with the mark for spaces; of a byte its name.
        score: the higher, the earlier two parts are merged to it; of equal ones the leftmost comes first.
        is_byte: whether it is a byte.
    """

    token: int
    text: str
    score: float
    is_byte: bool


@dataclass(frozen=True, slots=True)
class PieceModel:
    """The parts of a model that decide its tokens.

    Attributes:
        pieces: those that are text, and bytes.
        has_bytes: whether characters without a piece are written as bytes.
    """

    pieces: list[Piece]
    has_bytes: bool


def read_piece_model(data: bytes) -> PieceModel:
    """Read a model that the library has read.

    Raises:
        ArgumentError: it is no BPE, or changes the text in ways that are not decided exactly.
    """
    pieces: list[Piece] = []
    token, trainer, normalizer = 0, b"", b""
    for field, value in _fields(data):
        if field == _PIECES and isinstance(value, bytes):
            piece = _piece(token, value)
            if piece is not None:
                pieces.append(piece)
            token += 1
        elif field == _TRAINER and isinstance(value, bytes):
            trainer += value  # parts of a message that is given twice are one
        elif field == _NORMALIZER and isinstance(value, bytes):
            normalizer += value
    trained, normal = dict(_fields(trainer)), dict(_fields(normalizer))
    if trained.get(_MODEL_TYPE, 1) != _BPE:
        raise unsupported("its model is not BPE", evidence=f"the model is of type {trained.get(_MODEL_TYPE, 1)!r}")
    if normal.get(_MAP) or normal.get(_STRIPS, 1) or not normal.get(_MARKS_SPACES, 1) or trained.get(_SUFFIX):
        raise unsupported("a normalizer changes the text", evidence="that of the model is not the identity")
    return PieceModel(pieces, bool(trained.get(_BYTE_FALLBACK)))


def _piece(token: int, data: bytes) -> Piece | None:
    fields = dict(_fields(data))
    text, score, kind = fields.get(_TEXT, b""), fields.get(_SCORE, b""), fields.get(_KIND, _NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes):
        raise unsupported("its model is not read", evidence=f"piece {token} has fields of other types")
    if kind in _KINDS:
        raise unsupported(f"it has {_KINDS[int(kind)]} pieces", evidence=f"for instance {text.decode()!r:.60}")
    if kind in {_UNKNOWN, _CONTROL}:
        return None
    (number,) = struct.unpack("<f", score or bytes(4))
    return Piece(token, text.decode(), number, kind == _BYTE)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers, and bytes of all else."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = number()
        kind = key & 7
        if kind == _VARINT:
            yield key >> 3, number()
            continue
        if kind not in {_FIXED64, _BYTES, _FIXED32}:
            raise unsupported("its model is not read", evidence=f"a field has wire type {kind}")
        size = number() if kind == _BYTES else 8 if kind == _FIXED64 else 4
        yield key >> 3, data[at : at + size]
        at += size
