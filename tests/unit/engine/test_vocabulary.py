"""The Vocabulary value: its content, its errors, and how it spells and decodes."""

from __future__ import annotations

import copy
import itertools
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import ArgumentError, VocabularyError

LETTERS = [b"<eos>", b"a", b"b", b"ab", b"abc", b"c", b"a"]


def simple(**options: object) -> Vocabulary:
    return Vocabulary(LETTERS, eos=[0], **options)  # type: ignore[arg-type]


def test_eos_and_special_tokens_have_no_bytes() -> None:
    """Ids that only ``eos`` lists are special too, named after their bytes."""
    vocabulary = simple(special={5: "<c>"})
    assert vocabulary.tokens == (b"", b"a", b"b", b"ab", b"abc", b"", b"a")
    assert vocabulary.eos == (0,)
    assert dict(vocabulary.special) == {0: "<eos>", 5: "<c>"}


def test_special_ids_without_text_are_named() -> None:
    """A name is the token's own text where that is UTF-8, else its id in brackets."""
    vocabulary = Vocabulary([b"x", b"\xff", b"", b"a"], special=[0, 1, 2])
    assert dict(vocabulary.special) == {0: "x", 1: "<[1]>", 2: "<[2]>"}


def test_size_pads_with_tokens_that_have_no_bytes() -> None:
    """The head may be wider than the tokenizer; its padding is no text."""
    vocabulary = simple(size=10)
    assert vocabulary.size == len(vocabulary) == 10
    assert vocabulary.tokens[7:] == (b"", b"", b"")
    assert 8 not in vocabulary.special


def test_eos_may_lie_in_the_padding() -> None:
    """An EOS id needs no token of the tokenizer."""
    assert Vocabulary([b"a"], eos=[3], size=4).special == {3: "<[3]>"}


def test_ids_of_numpy_are_ids() -> None:
    """Anything that counts as an index counts as an id."""
    vocabulary = Vocabulary(LETTERS, eos=np.array([0]), special={np.int64(5): "<c>"})
    assert vocabulary.eos == (0,)
    assert vocabulary.decode(np.array([1, 2, 5])) == b"ab"
    assert all(type(token) is int for token in vocabulary.special)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"tokens": []}, "there are no tokens; pass"),
        ({"tokens": [], "eos": [0]}, "there are no tokens; pass"),
        ({"tokens": None}, "tokens must be a list of bytes; found None; pass"),
        ({"tokens": 3}, "tokens must be a list of bytes; found 3; pass"),
        ({"tokens": [b"", b""]}, "no token stands for any text"),
        ({"tokens": [b"a"], "eos": [0]}, "no token stands for any text"),
        ({"tokens": [b"a", "b"]}, "token 1 is not bytes"),
        ({"tokens": [b"a", bytearray(b"b")]}, "token 1 is not bytes"),
        ({"tokens": [b"a"], "eos": [1]}, "eos id 1 is out of range; the vocabulary has 1 id; use ids in 0..0,"),
        ({"tokens": [b"a"], "eos": [-1]}, "eos id -1 is out of range"),
        ({"tokens": [b"a"], "special": {7: "x"}}, "special id 7 is out of range"),
        ({"tokens": [b"a", b"b"], "special": {0: 5}}, "special token 0 is not a str"),
        ({"tokens": [b"a"], "eos": ["a"]}, "is not an integer"),
        ({"tokens": [b"a"], "eos": 0}, "eos must be a list of tokens; found 0; pass eos=[0]"),
        ({"tokens": [b"a"], "eos": None}, "eos must be a list of tokens; found None; pass eos=[] for none"),
        ({"tokens": [b"a"], "special": "a"}, "special must be a list"),
        ({"tokens": [b"a", b"b"], "size": 1}, "size must be between"),
        ({"tokens": [b"a"], "size": 1 << 40}, "size must be between"),
        ({"tokens": [b"a"], "size": 10**5000}, "size must be between"),
        ({"tokens": [b"a"], "size": "9"}, "size must be an int; found the text '9'; pass"),
        ({"tokens": [b"a" * 70_000]}, "70000 bytes"),
    ],
)
def test_malformed_arguments_are_refused(arguments: dict[str, object], complaint: str) -> None:
    """The error names the argument and what was found."""
    with pytest.raises(VocabularyError) as caught:
        Vocabulary(**arguments)  # type: ignore[arg-type]
    assert complaint in str(caught.value)


def test_it_cannot_be_changed() -> None:
    """No attribute can be set, and the special tokens are read-only."""
    vocabulary = simple()
    with pytest.raises(AttributeError):
        vocabulary.eos = (1,)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        vocabulary.other = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        vocabulary.special[1] = "x"  # type: ignore[index]


@pytest.mark.parametrize(
    "other",
    [
        Vocabulary([*LETTERS[:-1], b"aa"], eos=[0]),
        Vocabulary([b"<eos>", b"a", b"b", b"a", b"babc", b"c", b"a"], eos=[0]),
        Vocabulary(LETTERS, eos=[0, 5]),
        Vocabulary(LETTERS, eos=[0], special=[5]),
        Vocabulary(LETTERS, eos=[0], special={0: "<end>"}),
        Vocabulary(LETTERS, eos=[0], size=8),
    ],
)
def test_digest_depends_on_all_that_matters(other: Vocabulary) -> None:
    """Another token, token boundary, EOS, special token, name or size makes another vocabulary."""
    assert simple().digest != other.digest
    assert simple() != other


def test_equal_content_is_equal() -> None:
    """Equality, hash and digest depend on the content, not on the encoder."""
    one, two = simple(), Vocabulary(list(LETTERS), eos=(0,), tokenize=lambda text: [])
    assert one == two
    assert hash(one) == hash(two)
    assert one != "something else"
    assert len(one.digest) == 16


def test_copies_and_pickles_are_equal() -> None:
    """A copy is the value itself; a pickle from another process is equal to it."""
    vocabulary = simple(special={5: "<c>"}, size=9)
    assert copy.copy(vocabulary) is copy.deepcopy(vocabulary) is vocabulary
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary


def test_decode_joins_bytes_and_skips_special_tokens() -> None:
    """Special ids and padding contribute nothing; an id out of range is an error."""
    vocabulary = simple(size=9)
    assert vocabulary.decode([3, 0, 8, 5]) == b"abc"
    with pytest.raises(VocabularyError, match="token id 9 is out of range"):
        vocabulary.decode([9])
    with pytest.raises(VocabularyError, match="token id -1 is out of range"):
        vocabulary.decode([-1])
    with pytest.raises(VocabularyError, match=r"ids must be a list of tokens; found 3; pass ids=\[3\]"):
        vocabulary.decode(3)  # type: ignore[arg-type]


def test_what_is_neither_text_nor_a_name_is_refused() -> None:
    """The error says what was found."""
    vocabulary = simple()
    for value in (3, None, [1]):
        with pytest.raises(ArgumentError, match="tokenize: expected a text or bytes; found"):
            vocabulary.tokenize(value)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="token_id: expected the name of a special token; found 3"):
        vocabulary.token_id(3)  # type: ignore[arg-type]
    with pytest.raises(VocabularyError, match="size must be an int; found None"):
        vocabulary.with_size(None)  # type: ignore[arg-type]
    assert repr(Vocabulary([b"a"])) == "Vocabulary(1 token, eos=[], 0 special)"


def test_token_id_finds_special_tokens_only() -> None:
    """An ordinary token is not special; the error says that it exists."""
    vocabulary = simple(special={5: "<c>"})
    assert vocabulary.token_id("<c>") == 5
    with pytest.raises(VocabularyError, match="token 3 has these bytes, but it is ordinary text"):
        vocabulary.token_id("ab")
    with pytest.raises(VocabularyError, match="the special tokens are '<eos>', '<c>'"):
        vocabulary.token_id("<d>")


def test_missing_bytes_are_those_no_token_spells_alone() -> None:
    """A token of several bytes, or a special one, does not spell a byte."""
    missing = simple(special=[5]).missing_bytes
    assert set(range(256)) - set(missing) == set(b"ab")
    assert Vocabulary([bytes([value]) for value in range(256)]).missing_bytes == b""


def test_with_size_widens_and_narrows() -> None:
    """Narrowing drops the ids from the width on, special ones and EOS included."""
    vocabulary = Vocabulary(LETTERS, eos=[0, 6], special={5: "<c>"})
    assert vocabulary.with_size(7) is vocabulary
    assert vocabulary.with_size(9).tokens == (*vocabulary.tokens, b"", b"")
    narrow = vocabulary.with_size(5)
    assert (narrow.size, narrow.eos, dict(narrow.special)) == (5, (0,), {0: "<eos>"})
    with pytest.raises(VocabularyError, match="leaves no EOS id"):
        Vocabulary(LETTERS, eos=[6]).with_size(5)
    with pytest.raises(VocabularyError, match="there are no tokens"):
        Vocabulary(LETTERS).with_size(0)


def test_repr_is_short() -> None:
    """The repr names the size and the EOS ids, not 128,000 tokens."""
    assert repr(simple(size=9)) == "Vocabulary(9 tokens, eos=[0], 1 special)"
    assert len(repr(Vocabulary([b"a"] * 5000, eos=range(1000)))) < 100


def fewest(tokens: tuple[bytes, ...], data: bytes) -> int | None:
    """The length of the shortest spelling, by breadth-first search over positions."""
    reached, steps = {0}, 0
    while reached and len(data) not in reached:
        reached = {at + len(t) for at, t in itertools.product(reached, tokens) if t and data.startswith(t, at)}
        steps += 1
    return steps if reached else None


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.binary(min_size=0, max_size=4).map(lambda b: bytes(v % 3 + 97 for v in b)), min_size=1),
    data=st.binary(max_size=12).map(lambda b: bytes(v % 3 + 97 for v in b)),
)
def test_without_a_tokenizer_text_takes_the_fewest_tokens(tokens: list[bytes], data: bytes) -> None:
    """The spelling is exact and as short as breadth-first search finds, or the text is refused."""
    vocabulary = Vocabulary([b"d", *tokens])
    expected = fewest(vocabulary.tokens, data)
    if expected is None:
        with pytest.raises(VocabularyError, match="no tokens spell"):
            vocabulary.tokenize(data)
    else:
        ids = vocabulary.tokenize(data)
        assert vocabulary.decode(ids) == data
        assert len(ids) == expected
        assert all(vocabulary.tokens.index(vocabulary.tokens[token]) == token for token in ids)


def test_equally_short_spellings_begin_with_the_longest_token() -> None:
    """So the result depends only on the table."""
    vocabulary = Vocabulary([b"a", b"b", b"c", b"ab", b"bc", b"abc"])
    assert vocabulary.tokenize("ababc") == [3, 5]
    assert Vocabulary([b"a", b"bc", b"ab", b"c"]).tokenize("abc") == [2, 3]


def test_unspellable_byte_is_named() -> None:
    """The error says which byte, where, and its surroundings."""
    with pytest.raises(
        VocabularyError, match=r"'-' \(character 4 of the text\): byte 0x2d at offset 3; found in 'abc-a'"
    ):
        simple().tokenize("abc-a")


def test_long_texts_are_spelled_without_recursion() -> None:
    """A text of 200,000 bytes is spelled in one pass."""
    assert len(simple().tokenize("abc" * 70_000)) == 70_000


def test_empty_text_has_no_tokens() -> None:
    """It has none as str or bytes, with or without a tokenizer."""
    assert simple(tokenize=lambda text: [1]).tokenize("") == simple().tokenize(b"") == []


def test_lone_surrogates_are_refused() -> None:
    """They have no UTF-8; the error gives the place."""
    with pytest.raises(VocabularyError, match="lone surrogate at character 1"):
        simple().tokenize("a\ud800")


def test_own_encode_is_used_where_it_spells_the_text() -> None:
    """It is used even if it takes more tokens than needed."""
    vocabulary = simple(tokenize=lambda text: [{"a": 1, "b": 2, "c": 5}[letter] for letter in text.strip("\n")])
    assert vocabulary.tokenize("abc") == [1, 2, 5]
    assert vocabulary.tokenize(b"abc") == [1, 2, 5]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([2, 2], id="other text"),
        pytest.param([3, 5, 0], id="EOS at the end"),
        pytest.param([3, 0, 5], id="special token inside"),
        pytest.param([3], id="too short"),
        pytest.param([], id="nothing"),
        pytest.param([99, -1], id="ids out of range"),
    ],
)
def test_own_encode_is_not_used_where_it_does_not_spell_the_text(answer: list[int]) -> None:
    """Then the fewest tokens are used."""
    assert simple(tokenize=lambda text: answer).tokenize("abc") == [4]


def test_own_encode_may_put_something_before_the_text() -> None:
    """A BOS, or SentencePiece's space, is cut off at a token boundary."""
    assert simple(tokenize=lambda text: [0, 3, 5]).tokenize("abc") == [3, 5]


def test_a_merged_leading_space_is_avoided_by_a_line_break() -> None:
    """An encoder that adds a space to the start of a text is asked for the text after a line break."""
    tokens = [b"the", b" the", b"\n", b" ", b"t", b"he"]

    def encode(text: str) -> list[int]:
        return [1] if text == "the" else [3, 2, 4, 5]

    assert Vocabulary(tokens, tokenize=encode).tokenize("the") == [4, 5]


def test_bytes_that_are_not_utf8_do_not_reach_the_tokenizer() -> None:
    """They are spelled with the fewest tokens."""
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return []

    assert Vocabulary([b"\xff", b"\xff\xfe", b"\xfe"], tokenize=encode).tokenize(b"\xff\xfe") == [1]
    assert not seen


def test_threads_may_share_it() -> None:
    """Lazily computed parts are the same in every thread."""
    vocabulary = Vocabulary([bytes([a, b]) for a in range(97, 123) for b in range(97, 123)])
    found: list[tuple[list[int], bytes, bytes]] = []

    def use() -> None:
        found.append((vocabulary.tokenize("abcdef"), vocabulary.digest, vocabulary.missing_bytes))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(item == found[0] for item in found)


def test_list_of_bytes_is_a_source() -> None:
    """Vocabulary.load accepts what the constructor accepts."""
    assert Vocabulary.load(LETTERS, eos=[0], size=9) == simple(size=9)
    assert Vocabulary.load(LETTERS, eos=["<eos>"]) == simple()
    assert Vocabulary.load(LETTERS, eos=[0], special={5: "<c>"}) == simple(special={5: "<c>"})
    assert Vocabulary.load(LETTERS, eos=[0], size=5).size == 5


@pytest.mark.parametrize("eos", ["<eos>", b"<eos>", 0])
def test_load_wants_a_list_of_eos(eos: object) -> None:
    """A string would be read as a list of its characters."""
    with pytest.raises(VocabularyError, match="eos must be a list"):
        Vocabulary.load(LETTERS, eos=eos)  # type: ignore[arg-type]


def test_load_names_an_eos_that_is_no_token() -> None:
    """A vocabulary never silently lacks its EOS."""
    with pytest.raises(VocabularyError, match="no token '<end>' to end an output"):
        Vocabulary.load(LETTERS, eos=["<end>"])
