"""Reader of ``tekken.json``, the tokenizer format of Mistral models since 2024.

A tekken vocabulary is a list of byte strings in rank order.  The special tokens take the first ids, and the
file may list more ranks than the vocabulary uses.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import replace

from structgen.engine.tokenizers.table import MAX_TOKENS, TokenTable, read_cached
from structgen.engine.tokenizers.tiktoken_ranks import RanksEncoder, has_all_bytes
from structgen.errors import VocabularyError

__all__ = ["read_tekken"]

_SUBJECT = "tekken.json"

# Files up to version v7 leave out their special tokens; these are what such files mean, by id.
_FIRST_SPECIAL_TOKENS = (
    *(
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
    ),
    *(
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
    ),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_EOS = "</s>"


def read_tekken(data: bytes) -> TokenTable:
    """Read the content of a tekken.json.

    Raises:
        VocabularyError: the file is malformed.
    """
    table = read_cached(_SUBJECT, data, _decode)
    first = len(table.special)
    eos = tuple(token for token, text in table.special.items() if text == _EOS)
    ranked, pattern = table.tokens[first:], str(table.notes["pattern"])
    return replace(table, eos=eos, encode=RanksEncoder(ranked, pattern, first) if has_all_bytes(ranked) else None)


def _decode(data: bytes) -> TokenTable:
    try:
        spec = json.loads(data)
        config = spec["config"]
        count, pattern = config["default_num_special_tokens"], config["pattern"]
        last = config["default_vocab_size"] - count
        if not 0 <= count < MAX_TOKENS or not 0 < last < MAX_TOKENS:
            raise ValueError(f"the vocabulary has {count} special and {last} other tokens")
        special = _special_tokens(spec, count)
        by_rank = {entry["rank"]: entry["token_bytes"] for entry in spec["vocab"]}
        pieces = [base64.b64decode(by_rank[rank], validate=True) for rank in range(last)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise VocabularyError(
            _SUBJECT,
            "it is malformed",
            evidence=f"{type(error).__name__}: {error}",
            remedy="check that the file is complete and is a tekken.json",
        ) from error
    return TokenTable((b"",) * count + tuple(pieces), special, notes={"pattern": str(pattern)})


def _special_tokens(spec: Mapping[str, object], count: int) -> dict[int, str]:
    """Texts by id; ids below ``count`` that no entry names are fillers, as mistral-common names them."""
    special = {token: f"<SPECIAL_{token}>" for token in range(count)}
    entries = spec.get("special_tokens")
    if entries is None:
        special.update(zip(range(count), _FIRST_SPECIAL_TOKENS, strict=False))
        return special
    if not isinstance(entries, list):
        raise TypeError("'special_tokens' must be a list")
    for entry in entries:
        if entry["rank"] not in special:
            raise ValueError(f"special token {entry['token_str']!r} has rank {entry['rank']}, of {count}")
        special[entry["rank"]] = str(entry["token_str"])
    return special
