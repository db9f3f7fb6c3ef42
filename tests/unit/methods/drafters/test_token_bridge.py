"""Texts in the tokens of another model, and the grammar over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bpe_vocabularies import PROSE, RECORDS, bpe_vocabulary

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.drafters.token_bridge import GrammarReference, TokenBridge
from structgen.models import HashModel

TEXT = "😀 ".join(PROSE + RECORDS)


@pytest.fixture(scope="module")
def target() -> Vocabulary:
    return bpe_vocabulary("records")


@pytest.fixture(scope="module")
def draft() -> HashModel:
    return HashModel(bpe_vocabulary("prose"))


def test_the_two_differ(target: Vocabulary, draft: HashModel) -> None:
    """Each has tokens that the other lacks, and shared tokens have different ids."""
    ours, theirs = set(target.tokens), set(draft.vocabulary.tokens)
    assert len(ours - theirs) > 50
    assert len(theirs - ours) > 50
    there = draft.vocabulary.tokens
    assert any(piece in theirs and there[:token].count(piece) == 0 for token, piece in enumerate(target.tokens[1:], 1))


@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_kept_and_history_does_not_matter(target: Vocabulary, draft: HashModel, seed: int) -> None:
    """Along an output that grows, is cut and changed, the bytes are the target's, and equal those of a new bridge."""
    random = np.random.default_rng(seed)
    tokens = target.tokenize(TEXT)
    prompt = int(random.integers(1, 60))
    bridge = TokenBridge(target, draft, prompt)
    length = prompt
    for _ in range(40):
        length = min(max(length + int(random.integers(-30, 60)), prompt), len(tokens))
        if random.random() < 0.3:
            tokens[int(random.integers(len(tokens)))] = int(random.choice(tokens))
        read = bridge.read(tokens[:length])
        assert draft.vocabulary.decode(read) == target.decode(tokens[:length])
        assert read == TokenBridge(target, draft, prompt).read(tokens[:length])


def test_what_is_long_written_keeps_its_tokens(target: Vocabulary, draft: HashModel) -> None:
    """Each further token changes the reading only from its piece of 64 tokens on."""
    tokens = target.tokenize(TEXT)
    bridge = TokenBridge(target, draft, 10)
    before: list[int] = []
    for length in range(10, len(tokens)):
        read = bridge.read(tokens[:length])
        complete = target.decode(tokens[: 10 + (length - 10) // 64 * 64])
        kept = draft.vocabulary.tokenize(target.decode(tokens[:10]))
        for start in range(10, 10 + (length - 10) // 64 * 64, 64):
            kept += draft.vocabulary.tokenize(target.decode(tokens[start : start + 64]))
        assert draft.vocabulary.decode(kept) == complete
        assert read[: len(kept)] == kept
        before = read
    assert before


def test_special_tokens_are_those_of_the_same_text_or_nothing(target: Vocabulary, draft: HashModel) -> None:
    """Both have <|user|>; the target's <s> is nothing to the draft model, and no text either."""
    user, begin = target.token_id("<|user|>"), target.token_id("<s>")
    tokens = [begin, user, *target.tokenize("hi there"), user]
    read = TokenBridge(target, draft, len(tokens)).read(tokens)
    other = draft.vocabulary.token_id("<|user|>")
    assert read == [other, *draft.vocabulary.tokenize("hi there"), other]


def test_there_is_always_something_to_read(target: Vocabulary, draft: HashModel) -> None:
    """If nothing remains, it is the draft model's own empty prompt; its own prefix comes first."""
    begin = target.token_id("<s>")
    assert TokenBridge(target, draft, 1).read([begin]) == draft.encode_prompt("")
    model: Any = Prefix(draft.vocabulary)
    tokens = target.tokenize("hi")
    mark = draft.vocabulary.token_id("<|bot|>")
    assert TokenBridge(target, model, 1).read(tokens) == [mark, *draft.vocabulary.tokenize("h"), *model.tail]
    assert TokenBridge(target, model, 1).read([begin]) == [mark]


def test_the_grammar_follows_the_bytes(target: Vocabulary, draft: HashModel) -> None:
    """Its masks are those of a matcher that read the output in the draft model's tokens."""
    constraint = compile(json_schema({"type": "object", "properties": {"name": {"type": "string"}}}), target)
    reference = GrammarReference(constraint, draft.vocabulary)
    alone = compile(constraint.grammar, draft.vocabulary)
    output = target.tokenize('{"name": "the quick 😀 fox"}')
    random = np.random.default_rng(1)
    rows = np.zeros((2, (draft.vocabulary.size + 31) // 32), dtype=np.int32)
    for _ in range(60):
        length = int(random.integers(len(output) + 1))
        matcher = reference.at(output[:length])
        assert matcher is not None
        other = alone.matcher()
        data = target.decode(output[:length])
        assert other.accept_bytes(data) == len(data)
        matcher.fill_mask(rows, 0)
        other.fill_mask(rows, 1)
        assert (rows[0] == rows[1]).all()


def test_what_the_draft_model_cannot_follow_is_none(target: Vocabulary, draft: HashModel) -> None:
    """These are bytes that the grammar refuses, and special tokens that it lacks; later text is followed again."""
    constraint = compile(json_schema({"type": "array"}), target)
    reference = GrammarReference(constraint, draft.vocabulary)
    opening = target.tokenize("[")
    assert reference.at([*opening, *target.tokenize("fox")]) is None
    assert reference.at([*opening, target.token_id("<s>")]) is None
    matcher = reference.at(opening)
    assert matcher is not None
    assert matcher.accept_bytes(b"1]") == 2


def test_a_token_that_is_refused_in_the_middle_leaves_no_trace(draft: HashModel) -> None:
    """Its first bytes are rolled back."""
    digits = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b"12x"], eos=[0])
    reference = GrammarReference(compile(regex("[0-9]{3}"), digits), draft.vocabulary)
    assert reference.at([digits.size - 1]) is None
    matcher = reference.at([])
    assert matcher is not None
    assert matcher.accept_bytes(b"3456") == 3


class Prefix(HashModel):
    """A model whose prompts begin with a special token."""

    @property
    def tail(self) -> list[int]:
        return self.vocabulary.tokenize("i")

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return [self.vocabulary.token_id("<|bot|>"), *self.vocabulary.tokenize(prompt)]
