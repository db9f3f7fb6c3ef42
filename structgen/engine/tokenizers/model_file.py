"""Readers of ``tokenizer.json`` (Hugging Face) and of SentencePiece models (``tokenizer.model``, ``spiece.model``)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from structgen.engine.tokenizers.piece_bytes import PieceBytes, byte_or_text, decoder_chain, piece_bytes
from structgen.engine.tokenizers.table import TokenTable, need, read_cached, token_slots
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = [
    "SPACE_MARK",
    "SentencePieceEncoder",
    "TokenizerJsonEncoder",
    "looks_like_model",
    "read_processor",
    "read_sentencepiece",
    "read_tokenizer_json",
]

SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_PIECES_FIELD = b"\x0a"  # field 1, length-delimited: every model begins with its first piece


def looks_like_model(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` can be a serialized SentencePiece model."""
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
    facts = ("id_to_piece", "is_control", "is_unknown", "is_unused", "is_byte")
    columns = (getattr(processor, fact)(ids) for fact in facts)
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
        """Return the tokens of a text, without BOS and EOS."""
        if self._processor is None:
            with self._lock:
                if self._processor is None:
                    self._processor = _processor(self._data)
        ids: list[int] = self._processor.encode(text, out_type=int)
        return ids

    def content(self) -> bytes:
        """The serialized model."""
        return self._data

    def __reduce__(self) -> tuple[type[SentencePieceEncoder], tuple[bytes]]:
        return SentencePieceEncoder, (self._data,)


def _processor(data: bytes) -> Any:
    library = need("sentencepiece", "to read a SentencePiece model")
    try:
        return library.SentencePieceProcessor(model_proto=data)
    except (RuntimeError, ValueError, TypeError) as error:
        raise VocabularyError(
            "SentencePiece model", "it cannot be parsed", evidence=str(error), remedy="check that the file is complete"
        ) from error


_SUBJECT = "tokenizer.json"


def read_tokenizer_json(data: bytes) -> TokenTable:
    """Read the content of a tokenizer.json.

    The added tokens marked as special and the unknown token of the model are special: neither ever matches text.  Other
    added tokens are text, as the decoder writes them.

    Raises:
        VocabularyError: the file is malformed, or the bytes of its tokens cannot be derived.
    """
    return replace(read_cached(_SUBJECT, data, _decode), encode=TokenizerJsonEncoder(data))


class TokenizerJsonEncoder:
    """Encode text with the ``tokenizers`` library, loaded on the first call; threads may share it.

    ``data`` is the content of a tokenizer.json, or a function that makes it.
    """

    def __init__(self, data: bytes | Callable[[], bytes]) -> None:
        self._data = data
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, without BOS and EOS; none where the library has none for a character."""
        if self._tokenizer is None:
            with self._lock:
                if self._tokenizer is None:
                    self._tokenizer = self._load()
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if not _is_of_library(error):
                raise
            return []  # the vocabulary spells the text, or says why it can't
        return ids

    def __reduce__(self) -> tuple[type[TokenizerJsonEncoder], tuple[bytes | Callable[[], bytes]]]:
        return TokenizerJsonEncoder, (self._data,)

    def content(self) -> bytes:
        """The content of the tokenizer.json."""
        return self._data() if callable(self._data) else self._data

    def _load(self) -> Tokenizer:
        library = need("tokenizers", "to encode text with a tokenizer.json")
        try:
            tokenizer: Tokenizer = library.Tokenizer.from_str(self.content().decode())
        except BaseException as error:
            if not _is_of_library(error):
                raise
            raise VocabularyError(
                _SUBJECT,
                "the tokenizers library cannot load it",
                evidence=str(error),
                remedy="update the library, or pass the bytes alone: Vocabulary(vocabulary.tokens, eos=...)",
            ) from error
        tokenizer.encode_special_tokens = True  # a special token written out in text is text
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None  # BPE dropout would make encoding random
        return tokenizer


def _is_of_library(error: BaseException) -> bool:
    """Whether the tokenizers library raised it: nothing more specific than ``Exception``, and panics that are none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _decode(data: bytes) -> TokenTable:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise VocabularyError(
            _SUBJECT, "it is not valid JSON", evidence=str(error), remedy="check that the file is complete"
        ) from error
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        raise _malformed("there is no 'model' object")
    pieces = _model_pieces(model)
    added = _added_tokens(spec)
    convert = piece_bytes(decoder_chain(spec))
    _check_marks(model, convert)
    slots = token_slots(_SUBJECT, [*pieces.values(), *(token for token, _, _ in added)])
    for piece, token in pieces.items():
        slots[token] = convert(piece)
    special = _unknown(model, pieces)
    for token, content, is_special in added:
        slots[token] = convert(content)
        if is_special:
            special[token] = content
    for token in special:
        slots[token] = b""
    return TokenTable(tuple(slots), special)


def _model_pieces(model: Mapping[str, object]) -> dict[str, int]:
    """Return ids by piece, for every type of model."""
    kind, vocab = model.get("type"), model.get("vocab")
    if kind is None:  # old files do not have the field
        kind = "Unigram" if isinstance(vocab, list) else "BPE" if "merges" in model else "WordPiece"
    if kind == "Unigram" and isinstance(vocab, list):
        return _unigram_pieces(vocab)
    if kind in ("BPE", "WordPiece", "WordLevel") and isinstance(vocab, dict):
        if not {*map(type, vocab.values())} <= {int}:
            raise _malformed("'model.vocab' must map pieces to integer ids")
        return vocab
    raise VocabularyError(
        _SUBJECT,
        f"model type {kind!r} with a vocab of type {type(vocab).__name__} is not supported",
        remedy="supported are BPE, Unigram, WordPiece and WordLevel; or pass bytes: Vocabulary([...])",
    )


def _unigram_pieces(vocab: Iterable[object]) -> dict[str, int]:
    pieces: dict[str, int] = {}
    for token, entry in enumerate(vocab):
        if not (isinstance(entry, list) and entry and isinstance(entry[0], str)):
            raise _malformed(f"'model.vocab[{token}]' must be [piece, score]")
        pieces[entry[0]] = token
    return pieces


def _added_tokens(spec: Mapping[str, object]) -> list[tuple[int, str, bool]]:
    entries = spec.get("added_tokens") or []
    if not isinstance(entries, list):
        raise _malformed("'added_tokens' must be a list")
    added = []
    for place, entry in enumerate(entries):
        token, content = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, int) or not isinstance(content, str):
            raise _malformed(f"'added_tokens[{place}]' must have an integer 'id' and a text 'content'")
        added.append((token, content, entry.get("special") is True))
    return added


def _unknown(model: Mapping[str, object], pieces: Mapping[str, int]) -> dict[int, str]:
    """Return the token for unknown text, by id; its name is not its text."""
    if model.get("type") == "Unigram":
        unknown = model.get("unk_id")
        return {token: piece for piece, token in pieces.items() if token == unknown}
    text = model.get("unk_token")
    return {pieces[text]: text} if isinstance(text, str) and text in pieces else {}


def _check_marks(model: Mapping[str, object], convert: PieceBytes) -> None:
    """Refuse a model whose word-boundary mark the decoder would leave in the text."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        mark = model.get(name)
        if (
            isinstance(mark, str)
            and mark
            and mark.encode("utf-8", "surrogatepass") in convert(mark if name[0] == "c" else "a" + mark)
        ):
            raise VocabularyError(
                _SUBJECT,
                f"the decoder does not turn {name} {mark!r} into text",
                evidence=f"it spells {mark!r} as {convert(mark)!r}",
                remedy="set the decoder that belongs to the model, or pass bytes: Vocabulary([...])",
            )


def _malformed(problem: str) -> VocabularyError:
    return VocabularyError(_SUBJECT, problem, remedy="check that the file is complete and is a tokenizer.json")
