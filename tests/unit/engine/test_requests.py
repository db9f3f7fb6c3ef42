"""What differs from request to request in a batch: stop tokens, temperatures by state, and forced text."""

from __future__ import annotations

import pytest

from structgen.decode.generate import generate
from structgen.decode.step.sampler import Multinomial
from structgen.engine import Vocabulary, compile, fill_masks, row_temperatures
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import VocabularyError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import CharClass, Literal, Tempered, sequence
from structgen.integrations.llama_cpp import check_constraint
from structgen.models.toy.hash import HashModel

TOKENS = [b"", b"", b"", b"a", b"b", b"ab", b"\xc3", b"\xa9", b"c"]
NAMES = {0: "<eos>", 1: "<|im_end|>", 2: "<|eot|>"}
VOCABULARY = Vocabulary(TOKENS, eos=[0], special=NAMES)
SETS = [(0,), (1,), (2, 1), (0, 1, 2)]


def test_each_request_has_its_stop_tokens_in_one_batch() -> None:
    """Masks and states are those of vocabularies that were made with these EOS ids."""
    grammar = regex("(ab|c){1,3}")
    matchers = [compile(grammar, VOCABULARY.with_eos(eos)).matcher() for eos in SETS]
    others = [compile(grammar, Vocabulary(TOKENS, eos=eos, special=NAMES)).matcher() for eos in SETS]
    masks, expected = empty_masks(VOCABULARY, len(SETS)), empty_masks(VOCABULARY, 1)
    for step in (3, 4, 8, 5, None):
        fill_masks(matchers, masks)
        for row, (eos, other) in enumerate(zip(SETS, others, strict=True)):
            other.fill_mask(expected)
            assert (masks[row] == expected[0]).all()
            ends = set(allowed_ids(masks[row]).tolist()) & set(NAMES)
            assert ends == (set(eos) if matchers[row].is_accepting else set())
            token = eos[-1] if step is None else step
            assert matchers[row].accept(token) == other.accept(token)
    assert all(matcher.is_terminated for matcher in matchers)


def test_generation_ends_with_the_stop_tokens_of_its_constraint() -> None:
    """Outputs, probabilities and reasons are those of a model whose own EOS ids are these."""
    grammar = regex("[abc]{1,6}")
    for eos in SETS:
        theirs = HashModel(Vocabulary(TOKENS, eos=eos, special=NAMES), seed=4)
        ours = HashModel(VOCABULARY, seed=4)
        for seed in range(3):
            wanted, found = (
                generate(model, "ab", constraint, max_tokens=8, sampler=Multinomial(), seed=seed)
                for model, constraint in (
                    (theirs, compile(grammar, theirs.vocabulary)),
                    (_with_logits_of(theirs, ours), compile(grammar, VOCABULARY.with_eos(eos))),
                )
            )
            assert (found.tokens, found.finish_reason) == (wanted.tokens, wanted.finish_reason)
            assert (found.logprob, found.log_z) == (wanted.logprob, wanted.log_z)


def _with_logits_of(model: HashModel, other: HashModel) -> HashModel:
    """``model`` under the vocabulary of ``other``: the toy model's logits depend on the EOS ids."""
    model = HashModel(model.vocabulary, seed=4)
    model.vocabulary = other.vocabulary
    return model


def test_equal_stop_tokens_share_constraints() -> None:
    grammar = regex("a+")
    one, other = VOCABULARY.with_eos(["<|im_end|>"]), VOCABULARY.with_eos([1, 1])
    assert one is other
    assert compile(grammar, one) is compile(grammar, other)
    assert one.trie is VOCABULARY.trie
    assert VOCABULARY.with_eos([0]) is VOCABULARY
    assert VOCABULARY.with_eos([]).eos == ()
    for count in range(12):  # the last few are kept
        VOCABULARY.with_eos(dict.fromkeys([count % 3, (count // 3) % 3, (count + 1) % 3]))
    assert len(VOCABULARY._others) <= 8


@pytest.mark.parametrize(
    ("eos", "message"),
    [
        ([3], "ordinary text, b'a'"),
        (["</s>"], "no special token '</s>'"),
        ([9], "out of range"),
        ([-1], "out of range"),
    ],
)
def test_what_cannot_end_an_output(eos: list[int | str], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        VOCABULARY.with_eos(eos)


def test_temperatures_of_rows() -> None:
    """Each row has the temperature of its state, and the default where it has none."""
    letters = CharClass([(97, 98)])
    tempered = compile(sequence("c", Tempered(letters, 0.25), Tempered(letters, 0.0), "c"), VOCABULARY)
    plain = compile(sequence("c", letters, letters, "c"), VOCABULARY)
    matchers = [tempered.matcher(), plain.matcher(), tempered.matcher()]
    assert matchers[2].accept(8)
    seen = []
    for token in (8, 3, 4):
        seen.append(row_temperatures(matchers, default=0.7))
        assert matchers[0].accept(token)
        assert matchers[1].accept(token)
    seen.append(row_temperatures(matchers))
    assert seen == [[0.7, 0.7, 0.25], [0.25, 0.7, 0.25], [0.0, 0.7, 0.25], [1.0, 1.0, 0.25]]
    assert row_temperatures([]) == []
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="default"):
            row_temperatures(matchers, default=wrong)


def test_forced_text_is_the_whole_characters_of_the_forced_bytes() -> None:
    matcher = compile(sequence("abé", regex("a|b"), "ab"), VOCABULARY).matcher()
    assert (matcher.forced_text(), matcher.forced_bytes()) == ("abé", b"ab\xc3\xa9")
    assert matcher.accept(5)
    assert matcher.forced_text() == "é"
    assert matcher.accept(6)
    assert (matcher.forced_text(), matcher.forced_bytes()) == ("", b"\xa9")  # inside of a character
    assert matcher.accept(7)
    assert matcher.forced_text() == ""
    assert matcher.accept(4)
    assert matcher.forced_text() == "ab"
    both = compile(regex("aé|aè"), Vocabulary([bytes([byte]) for byte in range(256)])).matcher()
    assert (both.forced_text(), both.forced_bytes()) == ("a", b"a\xc3")  # the character is not certain
    raw = compile(Literal(b"a\xffb"), Vocabulary([bytes([byte]) for byte in range(256)])).matcher()
    assert (raw.forced_text(), raw.forced_bytes()) == ("a", b"a\xffb")


def test_who_samples_all_tokens_alike_refuses_temperatures() -> None:
    constraint = compile(Tempered(CharClass([(97, 98)]), 0.5), VOCABULARY)
    with pytest.raises(ValueError, match="temperature"):
        check_constraint(constraint, "sampler", None)
