"""The tokenizer objects of transformers and mistral-common."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="the sentencepiece library is not installed")

CORPUS = ["the quick brown fox jumps over the lazy dog", "naïve café 日本語"] * 10


def fast(**options: Any) -> Any:
    """A fast tokenizer with its end of text, a chat token and a non-special added token."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    inner.train_from_iterator(CORPUS, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", **options)
    tokenizer.add_tokens(["<call>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    return tokenizer


@pytest.fixture(name="slow")
def load_slow(tmp_path: Path) -> Any:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=320, byte_fallback=True, minloglevel=2,
        model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    path = tmp_path / "spiece.model"
    path.write_bytes(model.getvalue())
    tokenizer = transformers.tokenization_utils_sentencepiece.SentencePieceBackend(
        vocab_file=str(path), eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_tokens(["<call>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    return tokenizer


def test_fast_tokenizers_give_tokens_special_and_eos() -> None:
    """Tokens that were added after training count too."""
    tokenizer = fast(pad_token="a")
    vocabulary = Vocabulary.load(tokenizer)
    assert vocabulary.size == len(tokenizer)
    assert vocabulary.eos == (tokenizer.eos_token_id,)
    assert set(vocabulary.special) == set(tokenizer.all_special_ids)
    assert vocabulary.token_id("<turn>") == tokenizer.convert_tokens_to_ids("<turn>")
    assert vocabulary.tokens[tokenizer.convert_tokens_to_ids("<call>")] == b"<call>"


@pytest.mark.parametrize("text", ["the quick fox", " 日本語 café", "<eos><turn><call> and the rest", "\n\n\x00"])
def test_tokens_are_those_of_the_object(text: str) -> None:
    """Special tokens in the text are split, as the object does on request."""
    tokenizer = fast()
    vocabulary = Vocabulary.load(tokenizer)
    ids = vocabulary.tokenize(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert vocabulary.decode(ids) == text.encode()


def test_saved_and_live_tokenizers_are_the_same(tmp_path: Path) -> None:
    """The folder that save_pretrained writes gives the same vocabulary."""
    tokenizer = fast()
    tokenizer.save_pretrained(tmp_path)
    assert Vocabulary.load(tmp_path) == Vocabulary.load(tokenizer)


def test_eos_can_be_replaced() -> None:
    """For instance, the ids of the model's generation config can be used."""
    tokenizer = fast()
    expected = tuple(tokenizer.convert_tokens_to_ids(["<turn>", "<eos>"]))
    assert Vocabulary.load(tokenizer, eos=["<turn>", "<eos>"]).eos == expected


def test_slow_tokenizers_are_read_through_their_processor(slow: Any) -> None:
    """Bytes, special tokens and added tokens, by the ids of the wrapper."""
    vocabulary = Vocabulary.load(slow)
    assert vocabulary.size == len(slow)
    assert vocabulary.missing_bytes == b""
    assert vocabulary.tokens[slow.convert_tokens_to_ids("▁t")] == b" t"
    assert vocabulary.tokens[slow.convert_tokens_to_ids("<call>")] == b"<call>"
    assert {"<turn>", "<unk>", "</s>"} <= set(vocabulary.special.values())
    assert vocabulary.eos == (slow.eos_token_id,)


@pytest.mark.parametrize("text", ["the fox", " the fox", "日本語", "</s><turn><call>", "\x00 \x7f"])
def test_text_round_trips_through_slow_tokenizers(slow: Any, text: str) -> None:
    """The round trip is exact, special tokens written out included."""
    vocabulary = Vocabulary.load(slow)
    ids = vocabulary.tokenize(text)
    assert vocabulary.decode(ids) == text.encode()
    assert not set(ids) & set(vocabulary.special)


def test_tokenizers_in_python_code_are_refused() -> None:
    """The error names their class."""
    with pytest.raises(VocabularyError, match="ByT5Tokenizer is no tokenizer that can be read"):
        Vocabulary.load(transformers.ByT5Tokenizer())


def test_mistral_objects_lead_to_their_file() -> None:
    """mistral-common's tokenizers, the inner ones, and the wrapper of transformers all give the file."""
    pytest.importorskip("mistral_common", reason="mistral-common is not installed")
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    tokenizer = MistralTokenizer.v3()
    inner = tokenizer.instruct_tokenizer.tokenizer
    wrapper = transformers.MistralCommonBackend(tokenizer_path=inner.file_path)
    vocabulary = Vocabulary.load(inner.file_path)
    assert vocabulary == Vocabulary.load(tokenizer) == Vocabulary.load(inner) == Vocabulary.load(wrapper)
    assert vocabulary.size == inner.n_words
    assert vocabulary.eos == (inner.eos_id,)
