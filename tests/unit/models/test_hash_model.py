"""``HashModel``: deterministic, a function of the tokens alone, and able to write a given text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.models import HashModel, LanguageModel, PackedModel, Session
from structgen.models.protocol import Extension

TOKENS = [b"", b"a", b"b", b"ab", b"aba", b"bb", b"\xc3", b"\xa9", b"<pad>"]
VOCABULARY = Vocabulary(TOKENS, eos=[0], special={8: "<pad>"})
IDS = st.lists(st.integers(0, len(TOKENS) - 1), min_size=1, max_size=12)


def longest_suffix_that_starts(text: bytes, written: bytes) -> int:
    """By definition: the longest prefix of ``text`` that ``written`` ends with."""
    return max(length for length in range(len(text) + 1) if written.endswith(text[:length]))


def test_it_is_a_language_model() -> None:
    """It implements all of the protocols."""
    model = HashModel(VOCABULARY)
    assert isinstance(model, LanguageModel)
    assert isinstance(model.start(), Session)


def test_logits_are_the_same_on_every_machine() -> None:
    """Integer arithmetic fixes the values; here they are recomputed number by number."""

    def mix(word: int) -> int:
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    state = mix(mix(mix(3) ^ mix(1)) ^ mix(2))
    expected = [(mix(i * 0x9E3779B97F4A7C15 % 2**64 ^ state) >> 40) / 2**24 * 6 - 3 for i in range(len(TOKENS))]
    logits = HashModel(VOCABULARY, seed=3).start().extend([1, 2])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=1e-5)


@given(ids=IDS, cut=st.integers(0, 12), more=IDS, seed=st.integers(0, 2**70))
def test_logits_depend_on_the_tokens_alone(ids: list[int], cut: int, more: list[int], seed: int) -> None:
    """Splitting calls, truncating and forking change nothing."""
    model = HashModel(VOCABULARY, seed=seed, writes="abba")
    fresh = model.start()
    rows = fresh.extend_all(ids)
    assert rows.shape == (len(ids), VOCABULARY.size)
    stepwise = model.start()
    assert all(np.array_equal(stepwise.extend([token]), row) for token, row in zip(ids, rows, strict=True))
    reference = stepwise.fork()
    stepwise.extend(more)
    stepwise.truncate(min(cut, len(ids)))
    assert (stepwise.length, reference.length) == (min(cut, len(ids)), len(ids))
    expected = model.start().extend([*ids[:cut], *more])
    assert np.array_equal(stepwise.extend(more), expected)
    assert np.array_equal(reference.extend(more), model.start().extend([*ids, *more]))
    assert (fresh.forwards, reference.forwards) == (1, 1)


@given(requests=st.lists(st.tuples(IDS, IDS, st.booleans()), min_size=1, max_size=4))
def test_sequences_in_one_pass_do_not_see_each_other(requests: list[tuple[list[int], list[int], bool]]) -> None:
    """The answers are those of each session alone, bit for bit."""
    model = HashModel(VOCABULARY, writes="abba")
    assert isinstance(model, PackedModel)
    extensions, expected = [], []
    for before, ids, all_positions in requests:
        session, alone = model.start(), model.start()
        session.extend(before)
        alone.extend(before)
        extensions.append(Extension(session, ids, all_positions))
        expected.append(alone.extend_all(ids) if all_positions else alone.extend(ids))
    assert all(map(np.array_equal, model.extend_many(extensions), expected))
    assert all(extension.session.forwards == 2 for extension in extensions)


def test_a_pass_that_is_not_possible_extends_nothing() -> None:
    """A refused request, or a session of another model, leaves all sessions unchanged."""
    model = HashModel(VOCABULARY, max_context=4)
    first, second, stranger = model.start(), model.start(), HashModel(VOCABULARY).start()
    for bad, message in (
        (Extension(second, [1] * 5, False), "1 token longer"),
        (Extension(stranger, [1], True), "another model"),
    ):
        with pytest.raises(GenerationError, match=message):
            model.extend_many([Extension(first, [1], False), bad])
    assert [(each.length, each.forwards) for each in (first, second, stranger)] == [(0, 0)] * 3


def strings(alphabet: str, longest: int) -> list[str]:
    """All strings up to a length."""
    return ["".join(word) for length in range(longest + 1) for word in itertools.product(alphabet, repeat=length)]


@pytest.mark.parametrize("text", strings("ab", 7)[1:])
def test_it_wants_to_go_on_with_its_text(text: str) -> None:
    """The preferred token is the longest that the rest of the text starts with, or the end.

    The contexts are all short ones, and every prefix of the text followed by up to two letters.
    """
    goal = text.encode()
    model = HashModel(VOCABULARY, writes=text)
    prefixes = [text[:length] + more for length in range(len(text) + 1) for more in strings("ab", 2)]
    for written in {*strings("ab", 3), *prefixes} - {""}:
        logits = model.start().extend([TOKENS.index(letter.encode()) for letter in written])
        rest = goal[longest_suffix_that_starts(goal, written.encode()) :]
        best = max((token for token in TOKENS[1:6] if rest.startswith(token)), key=len, default=b"")
        assert int(logits.argmax()) == TOKENS.index(best), written


def test_without_a_text_there_is_only_noise() -> None:
    """Logits stay within the bounds of the noise."""
    assert np.abs(HashModel(VOCABULARY).start().extend_all([1, 2, 3])).max() <= 3


@given(text=st.text(max_size=20))
def test_it_writes_any_text(
    text: str,
) -> None:
    """With all bytes as tokens, greedy decoding writes the text and stops."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b"th", b"the"], eos=[0])
    model = HashModel(vocabulary, writes=text)
    session, written = model.start(), b""
    token = int(session.extend([0]).argmax())
    while text and token != 0:
        written += vocabulary.tokens[token]
        assert len(written) <= len(text.encode())
        token = int(session.extend([token]).argmax())
    assert written == text.encode()


def test_prompts_become_tokens() -> None:
    """The vocabulary spells a text, messages give their contents, and an empty prompt gives an end token."""
    model = HashModel(VOCABULARY)
    assert VOCABULARY.decode(model.encode_prompt("abba")) == b"abba"
    with_newline = HashModel(Vocabulary([b"", b"a", b"\n"], eos=[0]))
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "aa"}]
    assert with_newline.encode_prompt(messages) == [1, 2, 1, 1]
    assert model.encode_prompt("") == [0]


def test_overflow_says_by_how_much() -> None:
    """A sequence that is too long is refused before it grows."""
    session = HashModel(VOCABULARY, max_context=4).start()
    session.extend([1, 2, 3])
    with pytest.raises(GenerationError, match="3 tokens longer than the context") as caught:
        session.extend([1, 2, 3, 4])
    assert "3 tokens and 4 more make 7; the context holds 4" in caught.value.evidence
    assert (session.length, session.forwards) == (3, 1)
    session.close()
    assert session.length == 0
