"""Tokens of a text after the start of a word, against the tokens of the whole word."""

from __future__ import annotations

import pytest
from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.drafters.value_copying import Spelling

VOCABULARY = draft_vocabulary()


@pytest.mark.parametrize("text", ["", "Ada", " Lovelace in London", '", "city": "', "\u00e9\u4e00"])
def test_a_text_has_the_tokens_of_its_vocabulary(text: str) -> None:
    spelling = Spelling(VOCABULARY)
    assert spelling.of(text.encode()) == VOCABULARY.tokenize(text) == spelling.of(text.encode())


@pytest.mark.parametrize("whole", [" Lovelace in London", "was born in Paris", "Ada"])
def test_after_a_part_come_the_tokens_of_the_whole_where_one_begins_there(whole: str) -> None:
    spelling = Spelling(VOCABULARY)
    data = whole.encode()
    tokens = VOCABULARY.tokenize(whole)
    starts = {len(VOCABULARY.decode(tokens[:index])): tokens[index:] for index in range(len(tokens))}
    for cut in range(len(data)):
        expected = starts.get(cut, VOCABULARY.tokenize(data[cut:].decode()))
        assert spelling.following(data[:cut], data[cut:]) == expected
        assert VOCABULARY.decode(expected) == data[cut:]


def test_broken_characters_have_no_tokens() -> None:
    spelling = Spelling(VOCABULARY)
    assert spelling.of("\u4e00".encode()[:2]) == spelling.of("\u4e00".encode()[1:]) == []


def test_few_texts_are_kept() -> None:
    spelling = Spelling(VOCABULARY)
    for number in range(2000):
        spelling.of(str(number).encode())
    assert len(spelling._cache) <= 512
