"""The bytes of a language, as far as the term shows them: every random string consists of them."""

from __future__ import annotations

import re

import pytest

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import ByteClass, CharClass, Grammar, JsonString, SpecialToken, literal
from structgen.methods.drafters.vocabulary_trim import byte_alphabet, special_tokens

GRAMMARS: dict[str, Grammar] = {
    "date": regex("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "choice": select(["yes", "no", "žádný"]),
    "letters": CharClass([(0x61, 0x7A), (0x3B1, 0x3C9), (0x1F600, 0x1F64F)]),
    "bytes": ByteClass([(0, 3), (0xF8, 0xFF)]),
    "inside": JsonString(regex("[xé]{1,3}")),
    "both": regex("[a-m]+") & regex("[g-z]+"),
    "not": ~regex("abc"),
    "schema": json_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}),
    "repeated": literal("ab").many(2, 4, sep=","),
}


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("seed", range(5))
def test_no_member_has_another_byte(name: str, seed: int) -> None:
    """Random walks under masks over single bytes find the strings."""
    import random

    import numpy as np

    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    alphabet = byte_alphabet(GRAMMARS[name])
    matcher = compile(GRAMMARS[name], vocabulary).matcher()
    chance = random.Random(seed)
    mask = np.zeros((1, 9), dtype=np.int32)
    for _ in range(40):
        matcher.fill_mask(mask)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little", count=257))
        assert {int(bit) - 1 for bit in bits if bit} <= alphabet
        choices = [int(bit) for bit in bits if bit]
        if not choices:
            break
        assert matcher.accept(chance.choice(choices))


def test_what_it_is() -> None:
    assert byte_alphabet(GRAMMARS["date"]) == frozenset(b"0123456789-")
    assert byte_alphabet(GRAMMARS["bytes"]) == {0, 1, 2, 3, *range(0xF8, 0x100)}
    assert byte_alphabet(GRAMMARS["repeated"]) == frozenset(b"ab,")
    assert len(byte_alphabet(GRAMMARS["not"])) == 256


@pytest.mark.parametrize(("low", "high"), [(0x40, 0x90), (0x7FF, 0x801), (0x1000, 0xFFFF), (0xFFFF, 0x10001)])
def test_characters_beyond_ascii(low: int, high: int) -> None:
    """All bytes of all characters of a range are there, and no other leading bytes."""
    found = byte_alphabet(CharClass([(low, high)]))
    scalars = [code for code in range(low, high + 1) if not 0xD800 <= code <= 0xDFFF]
    wanted = {byte for code in scalars for byte in chr(code).encode()}
    assert wanted <= found
    assert found - wanted <= set(range(0x80, 0xC0))


def test_special_tokens() -> None:
    grammar = SpecialToken("<|im_end|>") + literal("a") + SpecialToken(3).many(0, 2)
    assert special_tokens(grammar) == {"<|im_end|>", 3}
    assert special_tokens(literal("<|im_end|>")) == frozenset()
    assert re.fullmatch(rb"[<|im_end>]+", bytes(byte_alphabet(literal("<|im_end|>"))))
