"""The laws of ``structgen.testing`` hold for arrays and objects without repetition."""

from __future__ import annotations

import random

import pytest

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import EPSILON, Distinct, Grammar, JsonString, choice, repeat, sequence
from structgen.testing import LAWS, Effort
from structgen.testing.matcher_laws import MatcherLaw

PIECES = [
    *(b"1,", b",1", b"1,1", b"[1", b"],[", b"1]", b"]]", b".0", b".0,", b"00"),
    *(b'["a",', b'","', b'",', b'a"', b'a","', b'"]', b'"a"', b"\\u0061", b'u0061"', b"0,1", b"e1]"),
    *(b'{"a":', b'"a":1', b',"a"', b'"a":1}', b"},{", b'"a":1},'),
]
LETTERS = [bytes([byte]) for byte in b'[]{}",:.ab01e\\u6']
EVERY_BYTE = [bytes([byte]) for byte in range(256)]
SMALL = Effort(walks=2, length=6)


def array(item: Grammar, fewest: int, most: int | None) -> Grammar:
    """Arrays of items without white space."""
    more = repeat(sequence(",", item), max(fewest - 1, 0), None if most is None else most - 1)
    return sequence("[", sequence(item, more) if fewest else choice(EPSILON, sequence(item, more)), "]")


def number() -> Grammar:
    """Numbers of the digits 0 and 1."""
    digits = repeat(choice("0", "1"))
    fraction = repeat(sequence(".", choice("0", "1"), digits), 0, 1)
    exponent = repeat(sequence("e", choice("0", "1")), 0, 1)
    return sequence(choice("0", sequence("1", digits)), fraction, exponent)


STRING = JsonString(repeat(choice("a", "b")))
GRAMMARS = {
    "numbers": Distinct(array(number(), 0, None), is_spare=True),
    "strings": Distinct(array(STRING, 1, None), is_spare=True),
    "nested": Distinct(array(Distinct(array(number(), 0, 2), is_spare=True), 0, None), is_spare=True),
    "no more values": Distinct(array(choice('"a"', r'"\u0061"', "1", '"aa"'), 0, None), is_spare=True),
    "two to three": Distinct(array(choice("0", "1", "10"), 2, 3)),
    "or repeated": choice(Distinct(array(choice(STRING, "1"), 0, None), is_spare=True), array(number(), 2, 3)),
    "objects": json_schema(
        {
            "type": "array",
            "items": {"type": "object", "properties": {"a": {"enum": [0, 1, 11]}}, "additionalProperties": False},
            "uniqueItems": True,
        },
        whitespace="compact",
    ),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", GRAMMARS)
def test_each_law_holds_where_few_bytes_are_tokens(name: str, law: MatcherLaw) -> None:
    """A vocabulary of the letters that the grammars need, and tokens that end one item and start the next."""
    vocabulary = Vocabulary([b"", *PIECES, *LETTERS], eos=[0])
    law(compile(GRAMMARS[name], vocabulary), random.Random(5), SMALL)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", GRAMMARS)
def test_each_law_holds_where_every_byte_is_a_token(name: str, law: MatcherLaw) -> None:
    """The same holds with all bytes, where masks come from shared rows and are corrected."""
    vocabulary = Vocabulary([b"", *PIECES, *EVERY_BYTE], eos=[0])
    law(compile(GRAMMARS[name], vocabulary), random.Random(8), SMALL)
