"""The places of values and labels, against searches of every position."""

from __future__ import annotations

import re

import numpy as np
import pytest

from structgen.decode.speculative.drafters.source_text import SourceText, boundary_kind, words_of_label

WORDS = [b"ada", b"Ada", b"ad", b"Lovelace", b"love", b"3", b"36", b"x@y.z", b"is", b"Email:", b"email", b"\xc3\xa9a"]


def random_text(generator: np.random.Generator) -> bytes:
    gaps = [b" ", b"\n", b"  ", b", ", b" \n\t"]
    return b"".join(
        bytes(generator.choice(WORDS)) + bytes(generator.choice(gaps)) for _ in range(int(generator.integers(1, 40)))
    )


def is_word_byte(text: bytes, at: int) -> bool:
    return 0 <= at < len(text) and (text[at] >= 128 or chr(text[at]).isalnum())


def naive_ends(text: bytes, wanted: bytes) -> list[int]:
    """The end of every occurrence of ``wanted``: at word starts first, then inside words if it is long."""
    places = [at for at in range(len(text)) if text[at : at + len(wanted)] == wanted]
    begins = [at for at in places if not is_word_byte(text, at - 1) or not is_word_byte(wanted, 0)]
    inside = [at for at in places if at not in begins] if len(wanted) >= 3 else []
    return [at + len(wanted) for at in begins + inside]


@pytest.mark.parametrize("seed", range(40))
def test_a_value_is_found_wherever_it_stands(seed: int) -> None:
    generator = np.random.default_rng(seed)
    data = random_text(generator)
    source = SourceText(data)
    assert source.text == re.sub(rb"\s+", b" ", data)
    for _ in range(20):
        start = int(generator.integers(len(data)))
        value = re.sub(rb"\s+", b" ", data[start : start + int(generator.integers(1, 25))])
        if generator.random() < 0.3:
            value = b"zzz " + value
        found = source.occurrences(value, 1000)
        expected: list[tuple[int, int, str]] = []
        starts = [
            0,
            *[at for at in range(1, len(value)) if is_word_byte(value, at) and not is_word_byte(value, at - 1)],
        ]
        for at in [0, *starts[1:][-8:]]:
            part = value[at:]
            if at and len(part) < 3:
                break
            for text, wanted, kind in ((source.text, part, "exact"), (source.text.lower(), part.lower(), "case")):
                if not expected:
                    expected = [(end, len(part), "part" if at else kind) for end in naive_ends(text, wanted)]
        assert [tuple(each) for each in found] == expected


def test_breaks_are_where_lines_end() -> None:
    source = SourceText(b"one\ntwo  three \n four\r\n")
    assert source.text == b"one two three four "
    assert source.breaks == {3, 13, 18}


@pytest.mark.parametrize(
    ("label", "text", "value", "kind"),
    [
        (b"email", b"Write. E-mail or Email: ada@x.org now", b"ada@x.org", "set off"),
        (b"order_number", b"your order number 88-41 came", b"88-41", "next"),
        (b"orderNumber", b"Order Number: 88-41", b"88-41", "set off"),
        (b"name", b"my name is Ada", b"Ada", "set off"),
        (b"full_name", b"The NAME - Ada", b"Ada", "set off"),
        (b"name", b'{"name": "Ada"}', b"Ada", "quoted"),
        (b"line", b"in file a.py, line 218.", b"218", "next"),
    ],
)
def test_a_value_stands_after_its_label(label: bytes, text: bytes, value: bytes, kind: str) -> None:
    source = SourceText(text)
    found = source.after_label(label, 3)
    assert [(each.kind, source.text.startswith(value, each.end)) for each in found][:1] == [(kind, True)]


def test_what_is_set_off_comes_first_and_words_are_whole() -> None:
    source = SourceText(b"the cityscape, the city hall, and City: Rome")
    found = source.after_label(b"city", 5)
    assert [(each.kind, source.text[each.end : each.end + 4]) for each in found] == [
        ("set off", b"Rome"),
        ("next", b"hall"),
    ]
    assert source.after_label(b"", 5) == source.after_label(b"street", 5) == []


def test_the_closest_number_comes_first() -> None:
    source = SourceText(b"In 1999 she, aged 36, had 3 cats and 2.5 dogs; no v1 or x2.")
    near = [source.number_at(each.end) for each in source.numbers_near(b"cats", 9)]
    assert near == [b"3", b"2.5", b"36", b"1999"]
    assert [source.number_at(each.end) for each in source.numbers_near(b"age", 1)] == [b"36"]


@pytest.mark.parametrize("gap", [", ", " and ", ", and ", "; ", "/", "\n", '", "', " or '"])
def test_an_enumeration_goes_on(gap: str) -> None:
    source = SourceText(f"Ada{gap}Grace".encode())
    following = source.item_after(3)
    assert following is not None
    assert source.text[following:] == b"Grace"


def test_nothing_follows_the_end() -> None:
    source = SourceText(b"Ada, Grace. ")
    assert source.item_after(10) is None
    assert source.item_after(12) is None


def test_words_of_labels() -> None:
    assert words_of_label(b"orderNumber2") == [b"order", b"number", b"2"]
    assert words_of_label(b"order-number") == words_of_label(b"Order_Number") == [b"order", b"number"]
    assert words_of_label(b"HTTPServer") == [b"http", b"server"]


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (b"Ada", b"", "end"),
        (b"Ada", b"\nBob", "line"),
        (b"Ada", b" Lovelace", "space AA"),
        (b"Ada", b" and", "space Aa"),
        (b"the", b" 3", "space a1"),
        (b"Ada", b". Then", "stop"),
        (b"3", b".5", None),
        (b"Ada", b", who", "comma"),
        (b"1", b",000", None),
        (b"Ada", b"; who", "colon"),
        (b"Ada", b") who", "bracket"),
        (b"Ada", b'" who', "quote"),
        (b"Ad", b"a", None),
        (b"a-", b"b", None),
        (b"Ada ", b"Lovelace", None),
    ],
)
def test_boundaries(before: bytes, after: bytes, kind: str | None) -> None:
    source = SourceText(b"x " + before + after)
    assert boundary_kind(source, 2 + len(before)) == kind
