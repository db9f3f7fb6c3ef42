"""Find the reader for a source: by what an object offers, and by what a file contains, not by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structgen.engine.tokenizers.gguf_file import read_gguf
from structgen.engine.tokenizers.gguf_header import MAGIC
from structgen.engine.tokenizers.sentencepiece_model import (
    looks_like_model,
    read_processor,
    read_sentencepiece,
)
from structgen.engine.tokenizers.side_files import read_side_files
from structgen.engine.tokenizers.table import TokenTable
from structgen.engine.tokenizers.tekken import read_tekken
from structgen.engine.tokenizers.tiktoken_ranks import looks_like_ranks, read_encoding, read_ranks
from structgen.engine.tokenizers.tokenizer_json import read_tokenizer_json
from structgen.engine.tokenizers.transformers_object import read_fast, read_slow
from structgen.errors import VocabularyError

__all__ = ["read_source"]

_SUPPORTED = (
    "a tokenizer object of transformers, tokenizers, tiktoken, sentencepiece or mistral-common, "
    "a list of bytes, the path of a tokenizer.json, tekken.json, SentencePiece model, tiktoken ranks or GGUF "
    "file, or of a folder with one"
)
_START_BYTES = 4096
_JSON_SPACE = b" \t\r\n"

# In a folder: the first pattern that matches anything is the tokenizer.
_FILES = ("tokenizer.json", "tekken*.json", "*.model", "*.model.v*", "*.tiktoken", "*.gguf")


def read_source(source: object, *, resolve_eos: bool = True) -> TokenTable:
    """Read a tokenizer from any supported source.

    Args:
        source: an object, a path, or the bytes of the tokens.
        resolve_eos: whether to look up the EOS tokens that the files of a folder name.

    Raises:
        VocabularyError: the source is of no supported kind, or malformed.
    """
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), resolve_eos=resolve_eos)
    if isinstance(source, list | tuple):
        return TokenTable(tuple(source))
    read = _object_reader(source)
    if read is None:
        raise VocabularyError(
            "vocabulary",
            f"a {type(source).__module__}.{type(source).__qualname__} is no tokenizer that can be read",
            remedy=f"pass {_SUPPORTED}",
        )
    return read(source)


def _object_reader(source: object) -> Callable[[Any], TokenTable] | None:
    readers: tuple[tuple[tuple[str, ...], Callable[[Any], TokenTable]], ...] = (
        (("backend_tokenizer", "added_tokens_decoder"), read_fast),
        (("sp_model", "added_tokens_decoder", "convert_ids_to_tokens"), read_slow),
        (
            ("to_str", "get_added_tokens_decoder"),
            lambda tokenizer: read_tokenizer_json(tokenizer.to_str().encode()),
        ),
        (("decode_single_token_bytes", "special_tokens_set"), read_encoding),
        (("id_to_piece", "serialized_model_proto"), read_processor),
        (("instruct_tokenizer",), lambda tokenizer: read_source(tokenizer.instruct_tokenizer.tokenizer)),
        (("file_path", "n_words"), lambda tokenizer: read_source(tokenizer.file_path)),
        # transformers' wrapper of mistral-common comes last: it has a 'tokenizer' where others have their own
        (("tokenizer", "apply_chat_template"), lambda tokenizer: read_source(tokenizer.tokenizer)),
    )
    for names, read in readers:
        if all(hasattr(source, name) for name in names):
            return read
    return None


def _read_path(path: Path, *, resolve_eos: bool) -> TokenTable:
    if path.is_dir():
        file = _tokenizer_file(path)
    elif path.is_file():
        file = path
    else:
        raise VocabularyError(
            "vocabulary",
            f"there is no file or folder {str(path)!r}",
            remedy="download the model first and pass its folder, or pass its tokenizer object",
        )
    with file.open("rb") as opened:
        start = opened.read(_START_BYTES)
    if start.startswith(MAGIC):  # says all by itself; the files beside it may belong to other models
        return read_gguf(file)
    return read_side_files(file.parent).apply(_read_content(file, start), resolve_eos=resolve_eos)


def _tokenizer_file(folder: Path) -> Path:
    for pattern in _FILES:
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            raise VocabularyError(
                "vocabulary",
                f"folder {str(folder)!r} holds {len(found)} tokenizers",
                evidence="found " + ", ".join(repr(path.name) for path in found[:8]),
                remedy="pass the path of one of them",
            )
        if found:
            return found[0]
    names = sorted(path.name for path in folder.iterdir())
    raise VocabularyError(
        "vocabulary",
        f"folder {str(folder)!r} holds no tokenizer that can be read",
        evidence=f"found {', '.join(map(repr, names[:8])) or 'nothing'}" + (" ..." if len(names) > 8 else ""),
        remedy=f"it should hold one of {', '.join(_FILES)}; or pass the tokenizer object",
    )


def _read_content(path: Path, start: bytes) -> TokenTable:
    if start.lstrip(_JSON_SPACE).startswith(b"{"):
        return _read_json(path, path.read_bytes())
    if looks_like_ranks(start):
        return read_ranks(path.read_bytes())
    if looks_like_model(start):
        return read_sentencepiece(path.read_bytes())
    raise VocabularyError(
        "vocabulary",
        f"file {str(path)!r} is of no format that can be read",
        evidence=f"it begins with {start[:16]!r}",
        remedy=f"pass {_SUPPORTED}",
    )


def _read_json(path: Path, data: bytes) -> TokenTable:
    """Tell a tekken.json from a tokenizer.json by the key that only it has."""
    if b'"default_num_special_tokens"' in data:
        return read_tekken(data)
    if b'"model"' in data:
        return read_tokenizer_json(data)
    raise VocabularyError(
        "vocabulary",
        f"file {str(path)!r} is JSON, but neither a tokenizer.json nor a tekken.json",
        evidence=f"it begins with {data[:40]!r}",
        remedy=f"pass {_SUPPORTED}",
    )
