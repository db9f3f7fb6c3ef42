"""Reader of SentencePiece models (``tokenizer.model``, ``spiece.model``, Mistral's ``.model.v3`` ...).

``▁`` stands for the space, ``<0xNN>`` pieces of type BYTE for one byte.  Control and unknown pieces are
special, unused ones stand for nothing.  The space that SentencePiece puts before a text when it encodes, and
takes away when it decodes the whole, belongs to no token.
"""

from __future__ import annotations

import threading
from typing import Any

from structgen.engine.tokenizers.piece_bytes import byte_or_text
from structgen.engine.tokenizers.table import TokenTable, need, token_slots
from structgen.errors import VocabularyError

__all__ = ["SPACE_MARK", "SentencePieceEncoder", "looks_like_model", "read_processor", "read_sentencepiece"]

SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_PIECES_FIELD = b"\x0a"  # field 1, length-delimited: every model begins with its first piece


def looks_like_model(start: bytes) -> bool:
    """Whether a file that begins with ``start`` can be a serialized SentencePiece model."""
    return start.startswith(_PIECES_FIELD) and start[2:3] == _PIECES_FIELD


def read_sentencepiece(data: bytes) -> TokenTable:
    """Read the content of a serialized model.

    Raises:
        VocabularyError: the model is malformed, or the ``sentencepiece`` package is missing.
    """
    return read_processor(_processor(data))


def read_processor(processor: Any) -> TokenTable:
    """Read a ``SentencePieceProcessor``."""
    ids = list(range(processor.get_piece_size()))
    slots = token_slots("SentencePiece model", ids)
    special: dict[int, str] = {}
    facts = (
        processor.id_to_piece,
        processor.is_control,
        processor.is_unknown,
        processor.is_unused,
        processor.is_byte,
    )
    columns = (fact(ids) for fact in facts)
    for token, (piece, control, unknown, unused, byte) in enumerate(zip(*columns, strict=True)):
        if control or unknown:
            special[token] = piece
        elif byte:
            spelled = byte_or_text(piece)
            slots[token] = spelled if isinstance(spelled, bytes) else b""
        elif not unused:
            slots[token] = piece.replace(SPACE_MARK, " ").encode()
    eos = processor.eos_id()
    encode = SentencePieceEncoder(processor.serialized_model_proto())
    return TokenTable(tuple(slots), special, (eos,) if eos >= 0 else (), encode=encode)


class SentencePieceEncoder:
    """Encode text with the model, loaded on the first call; control pieces written out in text are text."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._processor: Any = None
        self._lock = threading.Lock()

    def __call__(self, text: str) -> list[int]:
        if self._processor is None:
            with self._lock:
                if self._processor is None:
                    self._processor = _processor(self._data)
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def __reduce__(self) -> tuple[type[SentencePieceEncoder], tuple[bytes]]:
        return SentencePieceEncoder, (self._data,)


def _processor(data: bytes) -> Any:
    library = need("sentencepiece", "to read a SentencePiece model")
    try:
        return library.SentencePieceProcessor(model_proto=data)
    except (RuntimeError, ValueError, TypeError) as error:
        raise VocabularyError(
            "SentencePiece model",
            "it cannot be parsed",
            evidence=str(error),
            remedy="check that the file is complete",
        ) from error
