"""SentencePiece models: pieces of every type, byte fallback, and the space before a text."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

sentencepiece = pytest.importorskip("sentencepiece", reason="the sentencepiece library is not installed")

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "naïve café 日本語 text",
    'a b c 1 2 3 { } : , "',
] * 20
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def train(**options: object) -> bytes:
    model = io.BytesIO()
    settings_ = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    settings_ |= {"remove_extra_whitespaces": False, "vocab_size": 380, "user_defined_symbols": ["<tool>"]}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        control_symbols=["<turn>"],
        minloglevel=2,
        **(settings_ | options),
    )
    return model.getvalue()


MODEL = train()
UNIGRAM = train(
    model_type="unigram",
    byte_fallback=False,
    vocab_size=48,
    normalization_rule_name="nmt_nfkc",
    remove_extra_whitespaces=True,
)


def processor(model: bytes = MODEL) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(name="vocabulary")
def load_model(tmp_path: Path) -> Vocabulary:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(MODEL)
    return Vocabulary.load(path)


def test_every_byte_has_its_piece(vocabulary: Vocabulary) -> None:
    """The 256 BYTE pieces are single bytes."""
    for value in range(256):
        assert vocabulary.tokens[processor().piece_to_id(f"<0x{value:02X}>")] == bytes([value])
    assert vocabulary.missing_bytes == b""


def test_control_and_unknown_pieces_are_special(vocabulary: Vocabulary) -> None:
    """User-defined symbols are text."""
    assert set(vocabulary.special.values()) == {"<unk>", "<s>", "</s>", "<turn>"}
    assert vocabulary.eos == (processor().eos_id(),)
    assert vocabulary.tokens[processor().piece_to_id("<tool>")] == b"<tool>"


def test_pieces_decode_like_the_library(vocabulary: Vocabulary) -> None:
    """They agree except for the one space that the library strips from the start of a text."""
    source, sp, compared = random.Random(1), processor(), 0
    ids_of_text = [token for token, piece in enumerate(vocabulary.tokens) if piece and not sp.is_byte(token)]
    for _ in range(300):
        ids = source.choices(ids_of_text, k=source.randint(1, 12))
        text = vocabulary.decode(ids).decode()
        assert text.removeprefix(" ") == sp.decode(ids)
        compared += 1
    assert compared == 300


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_any_text_round_trips(text: str) -> None:
    """Byte fallback spells everything that no piece covers."""
    assert LOADED.decode(LOADED.tokenize(text)) == text.encode()


LOADED = Vocabulary.load(processor())


@pytest.mark.parametrize("text", ["the fox", " the fox", "日本語", "123 {", "<tool>the"])
def test_tokens_are_those_of_the_middle_of_a_text(text: str) -> None:
    """They agree with the library's tokens after a line break."""
    expected = processor().encode("\n" + text)
    ids = LOADED.tokenize(text)
    assert ids == expected[-len(ids) :]
    assert LOADED.decode(ids) == text.encode()


def test_control_pieces_written_out_are_text(vocabulary: Vocabulary) -> None:
    """They are spelled, never parsed."""
    ids = vocabulary.tokenize("</s><turn>")
    assert vocabulary.decode(ids) == b"</s><turn>"
    assert not set(ids) & set(vocabulary.special)


def test_normalizing_models_spell_the_text_itself() -> None:
    """A model that changes the text (NFKC, extra spaces) does not provide the tokens of such a text."""
    vocabulary = Vocabulary.load(processor(UNIGRAM))
    assert processor(UNIGRAM).encode("the  dog") == processor(UNIGRAM).encode("the dog")
    assert vocabulary.decode(vocabulary.tokenize("the  dog")) == b"the  dog"


def test_without_byte_fallback_bytes_are_missing() -> None:
    """The missing bytes are reported, and a text with one is refused with its name."""
    vocabulary = Vocabulary.load(processor(UNIGRAM))
    assert 0x00 in vocabulary.missing_bytes
    with pytest.raises(VocabularyError, match="byte 0x00 at offset 1"):
        vocabulary.tokenize("a\0")


def test_file_object_and_pickle_are_the_same(vocabulary: Vocabulary) -> None:
    """Only the content matters, not its source."""
    assert vocabulary == LOADED == pickle.loads(pickle.dumps(LOADED))
    assert pickle.loads(pickle.dumps(LOADED)).tokenize("the fox") == vocabulary.tokenize("the fox")


def test_damaged_models_are_an_error(tmp_path: Path) -> None:
    """A truncated file is refused, not half read."""
    path = tmp_path / "tokenizer.model"
    path.write_bytes(MODEL[: len(MODEL) // 2])
    with pytest.raises(VocabularyError, match="SentencePiece model: it cannot be parsed"):
        Vocabulary.load(path)
