"""The field of JSON that an output is in, against a writer that reports it for each byte."""

from __future__ import annotations

import json

import numpy as np
import pytest

from structgen.decode.speculative.drafters.output_fields import OutputField, OutputFields

TEXTS = ["", "Ada", 'a "b" c', "back\\slash", "é\u20ac", "line\nbreak", "{[,:]}", "a: b"]


class Writer:
    """Writes random JSON and notes the field after each byte."""

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.data = bytearray()
        self.notes: list[OutputField] = []
        self.comma = generator.choice([", ", ",", " ,\n  "]).encode()
        self.colon = generator.choice([": ", ":", " : "]).encode()

    def put(self, data: bytes, *field: object) -> None:
        for byte in data:
            self.data.append(byte)
            self.notes.append(OutputField(*field))  # type: ignore[arg-type]

    def string(self, text: str, place: str, label: bytes, in_array: bool) -> None:
        self.put(b'"', place, label, b"", in_array)
        spelled = bytearray()
        for character in text:
            escaped = json.dumps(character, ensure_ascii=False)[1:-1].encode()
            for count in range(1, len(escaped) + 1):
                whole = count == len(escaped)
                split = len(character.encode()) > 1  # the bytes of a character count as they come
                shown = escaped[:count] if split else character.encode() if whole else b""
                self.put(escaped[count - 1 : count], place, label, bytes(spelled) + shown, in_array)
            spelled += character.encode()
        key = text.encode() if place == "key" else label
        self.put(b'"', "between", key, b"", in_array)

    def value(self, depth: int, label: bytes, in_array: bool) -> None:
        kind = int(self.generator.integers(4 if depth < 3 else 2))
        if kind == 0:
            self.string(str(self.generator.choice(TEXTS)), "string", label, in_array)
        elif kind == 1:
            text = str(self.generator.choice(["12", "-3.5e1", "true", "null"])).encode()
            for count in range(1, len(text) + 1):
                self.put(text[count - 1 : count], "bare", label, text[:count], in_array)
            self.put(b" ", "between", label, b"", in_array)
        elif kind == 2:
            self.put(b"[", "before", label, b"", True)
            for index in range(int(self.generator.integers(3))):
                if index:
                    self.put(b",", "before", label, b"", True)
                self.value(depth + 1, label, True)
            self.put(b"]", "between", label, b"", in_array)
        else:
            self.put(b"{", "between", label, b"", False)
            key = label
            for index in range(int(self.generator.integers(3))):
                if index:
                    self.put(self.comma, "between", key, b"", False)
                key = str(self.generator.choice(["name", "order_number", 'q"q'])).encode()
                self.string(key.decode(), "key", b"", False)
                self.put(self.colon, "before", key, b"", False)
                self.value(depth + 1, key, False)
            self.put(b"}", "between", label, b"", in_array)


@pytest.mark.parametrize("seed", range(60))
def test_each_byte_of_json_is_placed(seed: int) -> None:
    writer = Writer(np.random.default_rng(seed))
    writer.put(b"{", "between", b"", b"", False)
    writer.string("first", "key", b"", False)
    writer.put(writer.colon.strip(), "before", b"first", b"", False)
    writer.value(1, b"first", False)
    writer.put(b"}", "between", b"", b"", False)
    fields = OutputFields()
    for index, expected in enumerate(writer.notes):
        fields.feed(bytes(writer.data[index : index + 1]))
        found = fields.field
        if writer.data[index : index + 1] == b" " and expected.place in ("before", "between"):
            continue  # a colon with a space before it is not one yet
        where = bytes(writer.data[: index + 1])
        assert (found.place, found.value, found.in_array) == (expected.place, expected.value, expected.in_array), where
        if found.place in ("string", "bare", "before"):
            assert found.label == expected.label, where


def test_a_text_in_pieces_is_the_same_as_at_once() -> None:
    data = json.dumps({"a": [1, {"b": "c\u20ac\\"}], "d": None}, indent=2).encode()
    for cut in range(len(data)):
        one, other = OutputFields(), OutputFields()
        one.feed(data)
        other.feed(data[:cut])
        other.feed(data[cut:])
        assert (one.field, one.comma, one.colon) == (other.field, other.comma, other.colon)


@pytest.mark.parametrize(("separators", "indent"), [((", ", ": "), None), ((",", ":"), None), ((",", ": "), 2)])
def test_white_space_is_noted(separators: tuple[str, str], indent: int | None) -> None:
    fields = OutputFields()
    fields.feed(json.dumps({"a": "x", "b": 1, "c": "y"}, separators=separators, indent=indent).encode())
    gap = "" if indent is None else "\n" + indent * " "
    assert fields.comma == (separators[0] + gap).encode()
    assert fields.colon == separators[1].encode()


def test_the_last_string_is_remembered_within_its_array() -> None:
    fields = OutputFields()
    seen = []
    for piece in (b'{"a": "x\\ny"', b', "b": ["', b'z"', b', "', b'w"], "c', b'": 3'):
        fields.feed(piece)
        seen.append(fields.previous)
    assert seen == [b"x\ny", b"", b"z", b"z", b"w", b"w"]


@pytest.mark.parametrize(
    ("data", "label", "value"),
    [
        (b"Name: Ada Love", b"Name", b"Ada Love"),
        (b"a = 1\nemail:x@y", b"email", b"x@y"),
        (b"- city: Rome", b"city", b"Rome"),
        (b"once upon a", b"", b"once upon a"),
        (b"x\n", b"", b""),
    ],
)
def test_lines_of_text_have_labels_too(data: bytes, label: bytes, value: bytes) -> None:
    fields = OutputFields()
    fields.feed(data)
    assert fields.field == OutputField("line", label, value, False)


@pytest.mark.parametrize("data", [b'}}]]"a', b'{"a" "b"', b"[[[[" * 200, b'{"\\u00', b'{"a": "\\ud8', b'"\xff\\"'])
def test_malformed_text_is_read_somehow(data: bytes) -> None:
    fields = OutputFields()
    fields.feed(data)
    assert isinstance(fields.field, OutputField)
