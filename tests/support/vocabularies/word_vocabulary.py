"""A small vocabulary like large ones: words with their space, joined punctuation, single digits."""

from __future__ import annotations

from functools import lru_cache

from structgen.engine import Vocabulary

_PIECES = (
    '", ": "} "] ", {" [" {" }, ]} ], : , Ada '
    + "Love lace London name age email city tags true false null open closed "
).split(" ")
_WORDS = [
    "and",
    "is",
    "in",
    "at",
    "the",
    "lives",
    "was",
    "born",
    "Love",
    "London",
    "Ada",
    "Paris",
    "works",
    "for",
    "Ltd",
    "Grace",
    "Hopper",
    "me",
]


@lru_cache(maxsize=1)
def draft_vocabulary() -> Vocabulary:
    """Token 0 ends a text; all single bytes are tokens."""
    pieces = [b"", *[bytes([value]) for value in range(256)]]
    pieces += [piece.encode() for piece in dict.fromkeys(_PIECES) if len(piece) > 1]
    pieces += [b' "', b'",', b'":', b'": "', b'"}', *[b" " + word.encode() for word in _WORDS]]
    return Vocabulary(list(dict.fromkeys(pieces)), eos=[0], special={0: "<end>"})
