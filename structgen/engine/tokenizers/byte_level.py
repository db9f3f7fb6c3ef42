"""The byte-level alphabet: 256 printable characters that stand for the 256 bytes.

Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for the characters from
U+0100 on (``Ġ`` is the space).  The alphabet came with GPT-2 and is what ``ByteLevel`` of the ``tokenizers``
library uses.
"""

from __future__ import annotations

__all__ = ["from_byte_level"]

_ITSELF = frozenset([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
_OUTSIDE = 0xFFFD  # any character above U+00FF: one that Latin-1 cannot encode


def _alphabet() -> dict[int, int]:
    others = [byte for byte in range(256) if byte not in _ITSELF]
    table = dict.fromkeys(others, _OUTSIDE)
    table.update({0x100 + place: byte for place, byte in enumerate(others)})
    return table


_TO_LATIN_1 = _alphabet()


def from_byte_level(piece: str) -> bytes:
    """Return the bytes that ``piece`` stands for.

    A piece with any character outside the alphabet stands for itself as UTF-8: so the decoder of the
    ``tokenizers`` library treats added tokens such as ``"<｜User｜>"``.
    """
    try:
        return piece.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8", "surrogatepass")
