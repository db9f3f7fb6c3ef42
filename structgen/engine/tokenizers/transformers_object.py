"""Reader of the tokenizer objects of ``transformers``, without importing it.

A fast tokenizer wraps one of the ``tokenizers`` library, which says everything.  Of the others, those that
hold a SentencePiece processor are read through it; the rest build their text in Python code that no table can
express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from structgen.engine.tokenizers.sentencepiece_model import SPACE_MARK, read_processor
from structgen.engine.tokenizers.side_files import with_special
from structgen.engine.tokenizers.table import TokenTable, token_slots
from structgen.engine.tokenizers.tokenizer_json import read_tokenizer_json

__all__ = ["read_fast", "read_slow"]


def read_fast(tokenizer: Any) -> TokenTable:
    """Read a fast tokenizer (``TokenizersBackend``, formerly ``PreTrainedTokenizerFast``)."""
    table = read_tokenizer_json(tokenizer.backend_tokenizer.to_str().encode())
    return _finish(tokenizer, table)


def read_slow(tokenizer: Any) -> TokenTable:
    """Read a tokenizer that holds a SentencePiece processor (``sp_model``), ids of its own included."""
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
