"""Choice of the reader for a source: by the attributes of an object, or by the content of a file, not by its name.

Objects of ``transformers`` are read without importing it.  JSON files beside a tokenizer add special tokens, EOS ids
and the width of the model head.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from structgen.engine.tokenizers.gguf import MAGIC, read_gguf
from structgen.engine.tokenizers.model_file import (
    SPACE_MARK,
    looks_like_model,
    read_processor,
    read_sentencepiece,
    read_tokenizer_json,
)
from structgen.engine.tokenizers.table import MAX_TOKENS, TokenTable, eos_ids, find_id, token_slots
from structgen.engine.tokenizers.tiktoken_ranks import looks_like_ranks, read_encoding, read_ranks, read_tekken
from structgen.errors import VocabularyError, found

__all__ = ["SideFiles", "read_fast", "read_side_files", "read_slow", "read_source", "with_special"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ID = re.compile(r"[0-9]{1,9}")
_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The content of the files beside a tokenizer.

    Attributes:
        special: names of special tokens.
        added: added tokens by id, with their text and whether they are special.
        eos: ids and names of the tokens that end an output.
        size: width of the model head, or None.
    """

    special: tuple[str, ...]
    added: Mapping[int, tuple[str, bool]]
    eos: tuple[int | str, ...]
    size: int | None

    def apply(self, table: TokenTable, *, resolve_eos: bool) -> TokenTable:
        """Return the table of the tokenizer file with what these files add; their EOS too, where ``resolve_eos``.

        Raises:
            VocabularyError: an EOS is no token of the table.
        """
        table = _with_added(table, self.added)
        named = {token: text for text in self.special if (token := find_id(table, text)) is not None}
        table = with_special(table, named)
        size = self.size if self.size is not None and self.size >= len(table.tokens) else table.size
        eos = eos_ids(table, self.eos) if resolve_eos else ()
        return replace(table, eos=tuple(dict.fromkeys([*table.eos, *eos])), size=size)


def with_special(table: TokenTable, special: Mapping[int, str]) -> TokenTable:
    """Return ``table`` with more special tokens."""
    if not special.keys() - table.special.keys():
        return table
    return replace(table, special=dict(sorted({**special, **table.special}.items())))


def _with_added(table: TokenTable, added: Mapping[int, tuple[str, bool]]) -> TokenTable:
    """Fill in the tokens that only tokenizer_config.json lists, mostly after the end of the table."""
    slots = list(table.tokens)
    slots.extend([b""] * (max(added, default=-1) + 1 - len(slots)))
    for token, (text, special) in added.items():
        if not special and not slots[token] and token not in table.special:
            slots[token] = text.encode("utf-8", "surrogatepass")
    table = replace(table, tokens=tuple(slots))
    return with_special(table, {token: text for token, (text, special) in added.items() if special})


def read_side_files(folder: Path) -> SideFiles:
    """Read the files beside a tokenizer; each may be missing.

    Raises:
        VocabularyError: one of them is not a JSON object.
    """
    generation, model = _read(folder / "generation_config.json"), _read(folder / "config.json")
    tokenizer, mapped = _read(folder / "tokenizer_config.json"), _read(folder / "special_tokens_map.json")
    text_model = model.get("text_config")
    models = [model, text_model] if isinstance(text_model, dict) else [model]
    eos: list[int | str] = []
    for config in (generation, *models):
        ids = config.get("eos_token_id")
        eos.extend(token for token in (ids if isinstance(ids, list) else [ids]) if _is_id(token))
    eos.extend(text for config in (tokenizer, mapped) if (text := _token_text(config.get("eos_token"))))
    widths = [width for config in models if isinstance(width := config.get("vocab_size"), int)]
    special = [text for config in (tokenizer, mapped) for text in _special_texts(config)]
    return SideFiles(tuple(special), _added(tokenizer), tuple(dict.fromkeys(eos)), max(widths, default=None))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise VocabularyError(
            path.name, "it is not valid JSON", evidence=str(error), remedy="check that the file is complete"
        ) from error
    if not isinstance(value, dict):
        raise VocabularyError(path.name, "it is not a JSON object", evidence=f"found {type(value).__name__}")
    return value


def _token_text(value: object) -> str | None:
    """The text of a token that is written as a string or as an AddedToken object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _special_texts(config: Mapping[str, object]) -> Iterator[str]:
    values: list[object] = [config.get(name) for name in _SPECIAL_NAMES]
    for name in _SPECIAL_LISTS:
        more = config.get(name)
        values.extend(more if isinstance(more, list) else more.values() if isinstance(more, dict) else ())
    for value in values:
        text = _token_text(value)
        if text:
            yield text


def _added(config: Mapping[str, object]) -> dict[int, tuple[str, bool]]:
    entries = config.get("added_tokens_decoder")
    added = {}
    for token, entry in entries.items() if isinstance(entries, dict) else ():
        text = _token_text(entry)
        if text is not None and _ID.fullmatch(token) and int(token) < MAX_TOKENS:
            added[int(token)] = (text, isinstance(entry, dict) and entry.get("special") is True)
    return added


def read_fast(tokenizer: Any) -> TokenTable:
    """Read a fast tokenizer (``TokenizersBackend``, formerly ``PreTrainedTokenizerFast``)."""
    table = read_tokenizer_json(tokenizer.backend_tokenizer.to_str().encode())
    return _finish(tokenizer, table)


def read_slow(tokenizer: Any) -> TokenTable:
    """Read a tokenizer with a SentencePiece processor (``sp_model``), including ids of its own."""
    processor = tokenizer.sp_model
    base = read_processor(processor)
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    ids = list(range(len(tokenizer)))
    slots = token_slots(type(tokenizer).__name__, ids)
    special: dict[int, str] = {}
    for token, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        inner = processor.piece_to_id(piece)
        if token in added:
            slots[token] = str(added[token]).replace(SPACE_MARK, " ").encode()
        elif inner in base.special:
            special[token] = piece
        else:
            slots[token] = base.tokens[inner]
    encode = partial(tokenizer.encode, add_special_tokens=False, split_special_tokens=True)
    return _finish(tokenizer, TokenTable(tuple(slots), special, encode=encode))


def _finish(tokenizer: Any, table: TokenTable) -> TokenTable:
    special = {token: str(entry) for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    ids = [token for token in tokenizer.all_special_ids if token is not None]
    special |= dict(zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True))
    eos = tokenizer.eos_token_id
    ends = tuple(eos) if isinstance(eos, list | tuple) else () if eos is None else (eos,)
    return replace(with_special(table, special), eos=ends)


_SUPPORTED = (
    "a tokenizer object of transformers, tokenizers, tiktoken, sentencepiece or mistral-common, "
    "a list of bytes, the path of a tokenizer.json, tekken.json, SentencePiece model, tiktoken ranks or GGUF "
    "file, or of a folder with one"
)
_START_BYTES = 4096
_JSON_SPACE = b" \t\r\n"

# In a folder: the first pattern with a match is the tokenizer.
_FILES = ("tokenizer.json", "tekken*.json", "*.model", "*.model.v*", "*.tiktoken", "*.gguf")


def read_source(source: object, *, resolve_eos: bool = True) -> TokenTable:
    """Read a tokenizer from an object, a path, or the bytes of the tokens.

    With ``resolve_eos`` the EOS tokens that the files of a folder name are looked up.

    Raises:
        VocabularyError: the source is of no supported kind, or malformed.
    """
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source), resolve_eos=resolve_eos)
    if isinstance(source, list | tuple):
        return TokenTable(tuple(source))
    read = _object_reader(source)
    if read is None:
        kind = type(source)
        if kind.__module__ == "builtins":
            raise _unreadable("the source is no tokenizer", found(source))
        raise _unreadable(f"a {kind.__module__}.{kind.__qualname__} is no tokenizer that can be read")
    return read(source)


def _object_reader(source: object) -> Callable[[Any], TokenTable] | None:
    readers: tuple[tuple[tuple[str, ...], Callable[[Any], TokenTable]], ...] = (
        (("backend_tokenizer", "added_tokens_decoder"), read_fast),
        (("sp_model", "added_tokens_decoder", "convert_ids_to_tokens"), read_slow),
        (("to_str", "get_added_tokens_decoder"), lambda tokenizer: read_tokenizer_json(tokenizer.to_str().encode())),
        (("decode_single_token_bytes", "special_tokens_set"), read_encoding),
        (("id_to_piece", "serialized_model_proto"), read_processor),
        (("instruct_tokenizer",), lambda tokenizer: read_source(tokenizer.instruct_tokenizer.tokenizer)),
        (("file_path", "n_words"), lambda tokenizer: read_source(tokenizer.file_path)),
        # transformers' wrapper of mistral-common is last: other tokenizers have a 'tokenizer' attribute too
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
    if start.startswith(MAGIC):  # complete by itself; the files beside it may belong to other models
        return read_gguf(file)
    return read_side_files(file.parent).apply(_read_content(file, start), resolve_eos=resolve_eos)


def _tokenizer_file(folder: Path) -> Path:
    for pattern in _FILES:
        paths = sorted(folder.glob(pattern))
        if len(paths) > 1:
            raise VocabularyError(
                "vocabulary",
                f"folder {str(folder)!r} holds {len(paths)} tokenizers",
                evidence="found " + ", ".join(repr(path.name) for path in paths[:8]),
                remedy="pass the path of one of them",
            )
        if paths:
            return paths[0]
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
    raise _unreadable(f"file {str(path)!r} is of no format that can be read", f"it begins with {start[:16]!r}")


def _read_json(path: Path, data: bytes) -> TokenTable:
    """Tell a tekken.json from a tokenizer.json by the key that only it has."""
    if b'"default_num_special_tokens"' in data:
        return read_tekken(data)
    if b'"model"' in data:
        return read_tokenizer_json(data)
    problem = f"file {str(path)!r} is JSON, but neither a tokenizer.json nor a tekken.json"
    raise _unreadable(problem, f"it begins with {data[:40]!r}")


def _unreadable(problem: str, evidence: str = "") -> VocabularyError:
    return VocabularyError("vocabulary", problem, evidence=evidence, remedy=f"pass {_SUPPORTED}")
