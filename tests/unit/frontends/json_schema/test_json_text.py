"""JSON spellings of texts, against ``json.loads``."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema.formats.regex import spelled
from structgen.frontends.regex import regex
from structgen.grammar.nodes import JsonString, choice, sequence

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
FEW = ('a"', "a\\", "/", "é", "\n")
MANY = (
    "",
    "a",
    "ab",
    "aé",
    'a"b',
    "b/",
    "\n",
    "\nx",
    "\x1f",
    "\\u",
    "\\n",
    "c\t",
    "~",
    "\x7f",
    "é",
    "\U0001f600a",
    "日a",
)


def spellings(text: str) -> list[str]:
    """All spellings of a text between the quotes of a JSON string, with hexadecimal digits in one case."""
    ways = []
    for character in text:
        units = character.encode("utf-16-be")
        numbers = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
        written = ["".join(f"\\u{unit:04x}" for unit in numbers), "".join(f"\\u{unit:04X}" for unit in numbers)]
        if character >= " " and character not in '"\\':
            written.append(character)
        ways.append([*written, *([SHORT[character]] if character in SHORT else [])])
    return ["".join(parts) for parts in itertools.product(*ways)]


@pytest.mark.parametrize("texts", [FEW, MANY])
def test_spellings_of_alternatives(texts: tuple[str, ...]) -> None:
    """Every spelling of a text is accepted; a similar string is accepted iff it decodes to one of the texts."""
    constraint = compile(sequence('"', spelled(choice(*texts)), '"'), VOCABULARY)

    def accepts(inside: str) -> bool:
        matcher, data = constraint.matcher(), f'"{inside}"'.encode()
        return matcher.accept_bytes(data) == len(data) and matcher.is_accepting

    rng = random.Random(5)
    for text in texts:
        for written in spellings(text):
            assert accepts(written), written
            for _ in range(10):
                place = rng.randrange(len(written) + 1)
                other = (
                    written[:place]
                    + rng.choice(["", "0", "a", "b", "\\", "u", "é"])
                    + written[place + rng.randrange(2) :]
                )
                try:
                    decoded = json.loads(f'"{other}"')
                except ValueError:
                    decoded = None
                assert accepts(other) == (decoded in texts), other


@pytest.mark.parametrize("pattern", ["[a-z]{3}", "[a-z]*", 'a"*b', r"(a|\\)+c", "x|yy|"])
@pytest.mark.parametrize("depth", [2, 3])
def test_strings_that_hold_json_strings(pattern: str, depth: int) -> None:
    """A JSON text within a JSON string is decoded twice, and its length is known."""
    grammar = regex(pattern)
    for _ in range(depth):
        grammar = JsonString(grammar)
    constraint = compile(grammar, Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0]))
    rng = random.Random(depth)

    def spelled(text: str) -> str:
        def escaped(character: str) -> str:
            return f"\\u{ord(character):04x}" if character in '"\\' or rng.random() < 0.2 else character

        return f'"{"".join(escaped(character) for character in text)}"' if rng.random() < 0.5 else json.dumps(text)

    lengths = []
    for _ in range(200):
        inner = "".join(rng.choice('abcxy"\\z') for _ in range(rng.randrange(4)))
        text = plain = inner
        for _ in range(depth):
            text, plain = spelled(text), json.dumps(plain)
        matcher = constraint.matcher()
        is_member = matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting
        assert is_member == bool(re.fullmatch(pattern, inner)), text
        if is_member:
            lengths.append(len(plain))
    assert all(length >= constraint.shortest_bytes for length in lengths)
    shortest = bytes(constraint.matcher().shortest_completion())
    assert len(shortest) == constraint.shortest_bytes == constraint.min_tokens()
    value = shortest.decode()
    for _ in range(depth):
        value = json.loads(value)
    assert re.fullmatch(pattern, value)
