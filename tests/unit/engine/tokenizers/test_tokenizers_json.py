"""tokenizer.json: exact bytes for every kind of decoder, compared with the ``tokenizers`` library itself."""

from __future__ import annotations

import json
import pickle
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from structgen.engine.tokenizers.piece_bytes import from_byte_level
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
from tokenizers import (  # noqa: E402
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog jumps over the fox.",
    "naïve café — 日本語のテキスト, 👩‍👩‍👧 and e\u0301 accents\n\tindented\n\n",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"]}',
] * 4
TEXTS = [
    "the fox",
    " the fox",
    "  two  spaces ",
    "日本語 👩‍👩‍👧 e\u0301",
    "\x00\x01\x7f\u0080",
    "\U0010ffff\ud7ff\ue000",
    '{"name": "x"}\n\n\t',
    "<eos> and <s> written out",
]
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path / "cache"))


def train_byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=["<eos>"])
    )
    tokenizer.add_tokens(["<｜tool｜>", "<think>", "a b"])
    tokenizer.add_special_tokens(["<｜end｜>"])
    return tokenizer


def train_metaspace() -> Tokenizer:
    """A Unigram model with byte fallback, like conversions of SentencePiece models."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    byte_pieces = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=400, special_tokens=["<unk>", "<eos>"], unk_token="<unk>")
    )
    spec = json.loads(tokenizer.to_str())
    known = {piece for piece, _ in spec["model"]["vocab"]}
    spec["model"]["vocab"].extend([piece, -5.0] for piece in ("▁the", "the", "▁fox") if piece not in known)
    spec["model"]["vocab"].extend([piece, -20.0] for piece in byte_pieces)
    spec["model"]["byte_fallback"] = True
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def train_word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"]))
    return tokenizer


BYTE_LEVEL, METASPACE, WORD_PIECE = train_byte_level(), train_metaspace(), train_word_piece()


def text_ids(vocabulary: Vocabulary) -> list[int]:
    return [token for token, piece in enumerate(vocabulary.tokens) if piece]


def test_byte_level_alphabet_covers_every_byte() -> None:
    """The 256 characters of GPT-2's own table stand for the 256 bytes."""
    convert = pytest.importorskip("transformers.convert_slow_tokenizer", reason="needs transformers")
    for value, character in convert.bytes_to_unicode().items():
        assert from_byte_level(character) == bytes([value])


@pytest.mark.parametrize("piece", ["<｜User｜>", "a b", "tab\t", "\x7f", "日本"])
def test_pieces_outside_the_alphabet_stand_for_themselves(piece: str) -> None:
    """The library's own decoder treats them the same way."""
    assert from_byte_level(piece) == piece.encode()
    assert decoders.ByteLevel().decode([piece]) == piece


def test_byte_level_spells_every_byte_once_or_more() -> None:
    """All 256 single bytes are tokens, so any text can be written."""
    vocabulary = Vocabulary.load(BYTE_LEVEL, eos=["<eos>"])
    assert vocabulary.missing_bytes == b""
    assert vocabulary.size == BYTE_LEVEL.get_vocab_size()
    assert dict(vocabulary.special) == {0: "<eos>", BYTE_LEVEL.token_to_id("<｜end｜>"): "<｜end｜>"}


@pytest.mark.parametrize("text", TEXTS)
def test_encoded_text_joins_to_its_utf8(text: str) -> None:
    """The library's encoding spells the text and is the canonical tokenization."""
    vocabulary = Vocabulary.load(BYTE_LEVEL)
    ids = Tokenizer.from_str(BYTE_LEVEL.to_str()).encode(text.replace("<eos>", "eos")).ids
    assert vocabulary.decode(ids) == text.replace("<eos>", "eos").encode()
    assert vocabulary.tokenize(text.replace("<eos>", "eos")) == ids


def test_a_character_that_the_library_refuses(tmp_path: Path) -> None:
    """A Unigram model may have no token for unknown text; the error names the character."""
    model = {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]], "unk_id": None}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "decoder": {"type": "Fuse"}, "model": model})
    )
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.decode(vocabulary.tokenize("abba")) == b"abba"
    with pytest.raises(VocabularyError, match=r"no tokens spell '\.' \(character 3"):
        vocabulary.tokenize("ab.")


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_any_text_round_trips(text: str) -> None:
    """Byte-level and byte-fallback vocabularies write any text exactly."""
    for vocabulary in LOADED:
        assert vocabulary.decode(vocabulary.tokenize(text)) == text.encode()


LOADED = [Vocabulary.load(BYTE_LEVEL), Vocabulary.load(METASPACE)]


def test_byte_level_decodes_like_the_library() -> None:
    """Random sequences of text tokens, valid UTF-8 or not, decode to the same characters."""
    vocabulary, source = Vocabulary.load(BYTE_LEVEL), random.Random(1)
    for _ in range(300):
        ids = source.choices(text_ids(vocabulary), k=source.randint(1, 12))
        assert vocabulary.decode(ids).decode("utf-8", "replace") == BYTE_LEVEL.decode(ids)


def test_metaspace_decodes_like_the_library() -> None:
    """They agree except for the one space that the library strips from the start of a text."""
    vocabulary, source, compared = Vocabulary.load(METASPACE), random.Random(2), 0
    for _ in range(600):
        ids = source.choices(text_ids(vocabulary)[:-160], k=source.randint(1, 12))
        try:
            text = vocabulary.decode(ids).decode()
        except UnicodeDecodeError:
            continue  # the library then replaces whole runs of byte tokens
        assert text.removeprefix(" ") == METASPACE.decode(ids)
        compared += 1
    assert compared > 100


def test_byte_fallback_covers_every_byte() -> None:
    """Each <0xNN> piece is one byte, so no byte is missing; the unknown token is not text."""
    vocabulary = Vocabulary.load(METASPACE)
    for value in range(256):
        assert vocabulary.tokens[METASPACE.token_to_id(f"<0x{value:02X}>")] == bytes([value])
    assert vocabulary.missing_bytes == b""
    assert set(vocabulary.special.values()) == {"<unk>", "<eos>"}


def test_metaspace_is_a_space_and_text_goes_on_without_one() -> None:
    """The piece "▁the" is b" the"; the text "the" gets no extra space."""
    vocabulary, known = Vocabulary.load(METASPACE), METASPACE.token_to_id
    assert vocabulary.tokens[known("▁the")] == b" the"
    assert vocabulary.tokenize("the fox") == [known("the"), known("▁fox")]
    assert vocabulary.tokenize(" the fox") == [known("▁the"), known("▁fox")]


def test_metaspace_text_is_tokenized_as_it_would_be_inside_a_text() -> None:
    """The canonical tokens of " the dog" are those of the library after a line break."""
    after = METASPACE.encode("\n the dog").ids
    vocabulary = Vocabulary.load(METASPACE)
    assert after[-len(vocabulary.tokenize(" the dog")) :] == vocabulary.tokenize(" the dog")


def test_word_piece_carries_the_space_of_its_word() -> None:
    """Pieces join as the decoder joins them: a space before each word, none before a continuation."""
    vocabulary, source = Vocabulary.load(WORD_PIECE), random.Random(3)
    pieces = {token: piece for piece, token in WORD_PIECE.get_vocab().items()}
    words = [token for token in text_ids(vocabulary) if not pieces[token].startswith("##")]
    for _ in range(200):
        ids = [source.choice(words), *source.choices(text_ids(vocabulary), k=source.randint(0, 8))]
        assert vocabulary.decode(ids).decode() == " " + WORD_PIECE.decode(ids)
    assert set(vocabulary.special.values()) == {"[UNK]", "[SEP]"}


def test_special_tokens_written_out_are_text() -> None:
    """They are spelled with ordinary tokens, never with their own id."""
    vocabulary = Vocabulary.load(BYTE_LEVEL)
    ids = vocabulary.tokenize("<eos><｜end｜>")
    assert vocabulary.decode(ids) == "<eos><｜end｜>".encode()
    assert not set(ids) & set(vocabulary.special)


def test_added_tokens_that_are_not_special_are_text() -> None:
    """They have the bytes that the library decodes them to."""
    vocabulary = Vocabulary.load(BYTE_LEVEL)
    for text in ("<｜tool｜>", "<think>", "a b"):
        token = BYTE_LEVEL.token_to_id(text)
        assert vocabulary.tokens[token] == BYTE_LEVEL.decode([token]).encode() == text.encode()
        assert vocabulary.tokenize(text) == [token]


def test_loading_does_not_change_the_tokenizer() -> None:
    """Encoding uses a copy: truncation, padding and special tokens of the user's object stay."""
    tokenizer = train_byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4)
    tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 0)])
    before = tokenizer.to_str()
    text = "the quick brown fox jumps over <eos>"
    ids = Vocabulary.load(tokenizer).tokenize(text)
    assert tokenizer.to_str() == before
    assert Vocabulary.load(BYTE_LEVEL).decode(ids) == text.encode()
    assert len(tokenizer.encode(text).ids) == 4


def test_dropout_does_not_make_it_random() -> None:
    """BPE dropout is for training; the canonical tokens are always the same."""
    spec = json.loads(BYTE_LEVEL.to_str())
    spec["model"]["dropout"] = 0.5
    vocabulary = Vocabulary.load(Tokenizer.from_str(json.dumps(spec)))
    text = "The quick brown fox jumps over the lazy dog"
    assert {tuple(vocabulary.tokenize(text)) for _ in range(20)} == {tuple(BYTE_LEVEL.encode(text).ids)}


def test_normalized_text_is_still_spelled_exactly() -> None:
    """Where a normalizer changes the text, the fewest tokens spell the text itself."""
    tokenizer = train_byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    vocabulary = Vocabulary.load(tokenizer)
    assert vocabulary.decode(vocabulary.tokenize("The FOX")) == b"The FOX"


def test_vocabulary_of_a_tokenizer_can_be_pickled() -> None:
    """The pickle contains the encoder, which is loaded again on use."""
    vocabulary = Vocabulary.load(BYTE_LEVEL)
    ids = vocabulary.tokenize("the quick fox")
    again = pickle.loads(pickle.dumps(vocabulary))
    assert again == vocabulary
    assert again.tokenize("the quick fox") == ids


def test_file_and_object_are_the_same_vocabulary(tmp_path: Path) -> None:
    """A tokenizer.json gives the same vocabulary by path, under any name, and as an object."""
    BYTE_LEVEL.save(str(tmp_path / "renamed.json"))
    assert Vocabulary.load(tmp_path / "renamed.json") == Vocabulary.load(BYTE_LEVEL)


def spec_of(**changes: object) -> dict[str, object]:
    model = {"type": "BPE", "vocab": {"a": 0, "Ġb": 1, "▁c": 2, "<0x0A>": 3}, "merges": []}
    return {"added_tokens": [], "decoder": None, "pre_tokenizer": None, "model": model} | changes


def tokens_of(tmp_path: Path, **changes: object) -> tuple[bytes, ...]:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec_of(**changes)))
    return Vocabulary.load(path).tokens


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"decoder": {"type": "ByteLevel"}}, (b"a", b" b", "▁c".encode(), b"<0x0A>")),
        ({"pre_tokenizer": {"type": "ByteLevel"}}, (b"a", b" b", "▁c".encode(), b"<0x0A>")),
        ({"decoder": {"type": "Metaspace", "replacement": "▁"}}, (b"a", "Ġb".encode(), b" c", b"<0x0A>")),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace"}]}},
            (b"a", "Ġb".encode(), b" c", b"<0x0A>"),
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}},
            (b"a", "Ġb".encode(), b" c", b"<0x0A>"),
        ),
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}},
            (b"a", "Ġb".encode(), "▁c".encode(), b"\n"),
        ),
        ({"decoder": {"type": "BPEDecoder", "suffix": "a"}}, (b" ", "Ġb".encode(), "▁c".encode(), b"<0x0A>")),
        (
            {"decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 0}},
            (b"", "Ġb".encode(), "▁c".encode(), b"<0x0A>"),
        ),
    ],
)
def test_the_decoder_says_what_pieces_stand_for(
    tmp_path: Path, changes: dict[str, object], expected: tuple[bytes, ...]
) -> None:
    """The same pieces are other bytes under another decoder; without a decoder, the earlier steps decide."""
    assert tokens_of(tmp_path, **changes) == expected


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "model 'BPE' has no decoder"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "model 'WordLevel' has no decoder"),
        ({"decoder": {"type": "CTC"}}, "decoder step 'CTC'"),
        (
            {"decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}},
            "decoder step 'Replace'",
        ),
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}},
            "after the pieces are joined",
        ),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "Other", "vocab": {}}}, "model type 'Other'"),
        ({"decoder": {"type": "ByteLevel"}, "model": None}, "no 'model' object"),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": "0"}}}, "integer ids"),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": -1}}}, "found -1"),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 1 << 40}}}, "token ids"),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {}}}, "there are no tokens"),
        ({"decoder": {"type": "ByteLevel"}, "model": {"type": "Unigram", "vocab": ["a"]}}, "[piece, score]"),
        ({"decoder": {"type": "ByteLevel"}, "added_tokens": [{"content": "x"}]}, "'added_tokens[0]'"),
        (
            {
                "decoder": {"type": "ByteLevel"},
                "model": {"type": "BPE", "vocab": {"a</w>": 0}} | {"end_of_word_suffix": "</w>"},
            },
            "end_of_word_suffix '</w>'",
        ),
    ],
)
def test_what_has_no_exact_bytes_is_refused_by_name(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    """Nothing is assumed: the error names the step, the model or the entry."""
    if isinstance(changes.get("model"), dict):
        changes = changes | {"model": {"merges": []} | changes["model"]}  # type: ignore[operator]
    with pytest.raises(VocabularyError) as caught:
        tokens_of(tmp_path, **changes)
    assert complaint in str(caught.value)


def test_characters_as_words_have_bytes(tmp_path: Path) -> None:
    """A WordLevel model whose decoder only joins pieces has exact bytes."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "é": 1, "?": 2}, "unk_token": "?"}
    assert tokens_of(tmp_path, decoder={"type": "Fuse"}, model=model) == (b"a", "é".encode(), b"")


def test_byte_fallback_of_the_model_holds_without_a_decoder_step(tmp_path: Path) -> None:
    """The model writes byte tokens, so they are bytes, whatever the decoder says."""
    model = {"type": "BPE", "vocab": {"▁c": 0, "<0x0a>": 1, "<0xZZ>": 2}, "merges": [], "byte_fallback": True}
    assert tokens_of(tmp_path, decoder={"type": "Metaspace"}, model=model) == (b" c", b"\n", b"<0xZZ>")


def test_gaps_in_the_ids_are_no_text(tmp_path: Path) -> None:
    """An id without a name can never be allowed."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 3}, "merges": []}
    assert tokens_of(tmp_path, decoder={"type": "ByteLevel"}, model=model) == (b"a", b"", b"", b"b")


def test_what_the_library_cannot_load_is_an_error(tmp_path: Path) -> None:
    """Reading the bytes needs no library; encoding with a file that the library refuses gives the reason."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec_of(decoder={"type": "ByteLevel"}, added_tokens=[{"id": 4, "content": "x"}])))
    vocabulary = Vocabulary.load(path)
    with pytest.raises(VocabularyError, match="the tokenizers library cannot load it; missing field"):
        vocabulary.tokenize("a")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what it is needed for."""
    vocabulary = Vocabulary.load(BYTE_LEVEL)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(VocabularyError, match="package 'tokenizers' is needed to encode text"):
        vocabulary.tokenize("a")


def test_deeply_nested_json_is_an_error(tmp_path: Path) -> None:
    """100,000 nested lists end in a VocabularyError, not in a RecursionError."""
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(VocabularyError, match="it is not valid JSON"):
        Vocabulary.load(path)


def test_added_tokens_that_swallow_spaces_spell_exactly() -> None:
    """An added token that strips spaces does not make the spelling wrong."""
    tokenizer = train_byte_level()
    tokenizer.add_tokens([AddedToken("<call>", lstrip=True, rstrip=True)])
    vocabulary = Vocabulary.load(tokenizer)
    assert vocabulary.decode(vocabulary.tokenize("a  <call>  b")) == b"a  <call>  b"
