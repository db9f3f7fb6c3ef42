"""Makes kernels/native/scopes/label_characters.h: ``python tests/support/grammars/label_characters.py``.

The table holds the characters beyond ASCII that are judged natively in labels under ``xn--``, so that neither the
Python nor its Unicode version decides what a matcher allows.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from structgen.frontends.json_schema.formats import identifier as idna

PATH: Final = Path(__file__).parents[3] / "kernels" / "native" / "scopes" / "label_characters.h"
BIDI: Final = ("L", "R", "AL", "AN", "EN", "ES", "CS", "ET", "ON", "BN", "NSM")
_HEAD: Final = f"""\
// The characters beyond ASCII that labels may have, from Unicode {unicodedata.unidata_version}; made by
// tests/support/grammars/label_characters.py.  Those that compose with what precedes them are left out.
#pragma once

#include <cstdint>

namespace structgen {{

enum class Bidi : uint8_t {{ {", ".join("k" + kind for kind in BIDI)} }};

// Properties beside the direction, as bits.
constexpr uint8_t kMark = 1, kTransparent = 2, kJoinsLeft = 4, kJoinsRight = 8;
constexpr uint8_t kGreek = 16, kHebrew = 32, kJapanese = 64;

struct LabelCharacters {{
  uint32_t first, last;
  Bidi bidi;
  uint8_t properties;
  uint8_t combining;  // canonical combining class
}};

constexpr LabelCharacters kLabelCharacters[] = {{
"""
_TAIL: Final = """\
};

}  // namespace structgen
"""


def _properties(code: int) -> tuple[str, int, int]:
    character = chr(code)
    category = unicodedata.category(character)
    among = (idna.JOINS_LEFT, idna.JOINS_RIGHT, idna.GREEK, idna.HEBREW, idna.JAPANESE)
    bits = (category[0] == "M") | (category == "Mn") << 1
    bits |= sum(any(low <= code <= high for low, high in ranges) << 2 + i for i, ranges in enumerate(among))
    return unicodedata.bidirectional(character), bits, unicodedata.combining(character)


def _ranges() -> Iterator[tuple[int, int, tuple[str, int, int]]]:
    codes = {code for low, high in idna.valid_characters() for code in range(low, high + 1)} | idna.CONTEXTUAL
    first = last = 0
    held: tuple[str, int, int] | None = None
    for code in sorted(codes - idna.composing_characters()):
        found = _properties(code)
        if held is not None and (code != last + 1 or found != held):
            yield first, last, held
            held = None
        if held is None:
            first, held = code, found
        last = code
    if held is not None:
        yield first, last, held


def table() -> str:
    """The text of the header."""
    rows = [
        f"    {{0x{first:X}, 0x{last:X}, Bidi::k{bidi}, {bits}, {combining}}},\n"
        for first, last, (bidi, bits, combining) in _ranges()
    ]
    return _HEAD + "".join(rows) + _TAIL


if __name__ == "__main__":
    PATH.write_text(table())
