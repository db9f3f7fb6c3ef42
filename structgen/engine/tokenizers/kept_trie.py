"""The native byte trie of a token table, kept on disk for the next process.

Small tables are built faster than a file is opened; they are never kept.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from structgen.disk_cache import fetch, keep

if TYPE_CHECKING:
    from structgen_kernels._native import TokenTrie

__all__ = ["load_trie", "tokens_digest"]

_CACHED_FROM_TOKENS = 4096


def tokens_digest(tokens: Sequence[bytes]) -> bytes:
    """Hash the tokens: what they are, and where each ends (20 bytes, BLAKE2b)."""
    inner = hashlib.blake2b(b"".join(tokens), digest_size=20)
    inner.update(array("Q", map(len, tokens)).tobytes())
    return inner.digest()


def load_trie(tokens: tuple[bytes, ...]) -> TokenTrie:
    """Build the trie, or read what an earlier process with the same tokens and native module kept.

    The key holds the native module's size and time of change, for its format may change with any build.
    """
    import structgen_kernels._native as native

    if len(tokens) < _CACHED_FROM_TOKENS:
        return native.TokenTrie(list(tokens))
    built = Path(native.__file__).stat()
    key = f"{tokens_digest(tokens).hex()}-{built.st_size:x}-{built.st_mtime_ns:x}"
    kept = fetch("trie", key)
    if kept is not None:
        try:
            return native.TokenTrie.from_bytes(kept)
        except (ValueError, RuntimeError):  # not what this build wrote: build it again
            pass
    trie = native.TokenTrie(list(tokens))
    keep("trie", key, trie.to_bytes())
    return trie
