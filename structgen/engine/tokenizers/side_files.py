"""What the JSON files beside a tokenizer add: special tokens, EOS ids and the width of the model head.

Every id that one of the files names as an end of text is an EOS: chat models list several, spread over
``generation_config.json``, ``config.json`` and the tokenizer's own files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from structgen.engine.tokenizers.table import MAX_TOKENS, TokenTable, eos_ids, find_id
from structgen.errors import VocabularyError

__all__ = ["SideFiles", "read_side_files", "with_special"]

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ID = re.compile(r"[0-9]{1,9}")
_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """What the files beside a tokenizer say.

    Attributes:
        special: texts of special tokens.
        added: added tokens by id, with their text and whether they are special.
        eos: ids and texts of tokens that end a text.
        size: width of the model head, or None.
    """

    special: tuple[str, ...]
    added: Mapping[int, tuple[str, bool]]
    eos: tuple[int | str, ...]
    size: int | None

    def apply(self, table: TokenTable, *, resolve_eos: bool) -> TokenTable:
        """Return ``table`` with what these files add.

        Args:
            table: what the tokenizer file says.
            resolve_eos: False where the caller brings its own EOS ids.

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
        found = config.get("eos_token_id")
        eos.extend(token for token in (found if isinstance(found, list) else [found]) if _is_id(token))
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
        raise VocabularyError(path.name, "it is not valid JSON", evidence=str(error)) from error
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
