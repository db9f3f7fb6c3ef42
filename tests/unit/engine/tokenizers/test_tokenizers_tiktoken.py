"""tiktoken encodings and rank files, and tekken.json, a rank file with its own ids."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from structgen.engine.tokenizers.tiktoken_ranks import read_tekken
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

tiktoken = pytest.importorskip("tiktoken", reason="the tiktoken library is not installed")

PATTERN = r"\p{L}+| ?[^\s\p{L}]+|\s+"
MERGED = [b"th", b"the", b" t", b"qu", b"\xe6\x97", b"\xe6\x97\xa5"]
RANKED = [bytes([value]) for value in range(256)] + MERGED
RANKS = {piece: rank for rank, piece in enumerate(RANKED)}
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def encoding(**special: int) -> tiktoken.Encoding:
    named = {f"<|{name}|>": token for name, token in special.items()}
    return tiktoken.Encoding("tiny", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=named)


def tekken(*, version: str = "v3", special: list[str] | None = None) -> dict[str, object]:
    count = len(special) if special else 24
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for rank, piece in enumerate([*RANKED, b"unused", b"unused too"])
    ]
    config = {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "version": version}
    config |= {"default_vocab_size": len(RANKED) + count, "default_num_special_tokens": count}
    spec: dict[str, object] = {"config": config, "vocab": vocab}
    if special:
        entries = enumerate(special)
        spec["special_tokens"] = [{"rank": i, "token_str": text, "is_control": True} for i, text in entries]
    return spec


def load_json(folder: Path, spec: dict[str, object]) -> Vocabulary:
    path = folder / "tekken.json"
    path.write_text(json.dumps(spec))
    return Vocabulary.load(path)


def test_encoding_gives_its_bytes_and_special_tokens() -> None:
    """End of text is the EOS; ids between the ranks and the special tokens are gaps."""
    vocabulary = Vocabulary.load(encoding(endoftext=270, other=271))
    assert vocabulary.tokens[: len(RANKED)] == tuple(RANKED)
    assert vocabulary.tokens[len(RANKED) :] == (b"",) * (272 - len(RANKED))
    assert vocabulary.eos == (270,)
    assert dict(vocabulary.special) == {270: "<|endoftext|>", 271: "<|other|>"}
    assert vocabulary.missing_bytes == b""


def test_encoding_without_end_of_text_has_no_eos() -> None:
    """The caller names it."""
    assert Vocabulary.load(encoding(stop=270)).eos == ()
    assert Vocabulary.load(encoding(stop=270), eos=["<|stop|>"]).eos == (270,)


ENCODING = Vocabulary.load(encoding(endoftext=270))


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None)
@given(any_text)
def test_tokens_are_those_of_the_encoding(text: str) -> None:
    """They are exact, and special tokens in the text are text."""
    assert ENCODING.tokenize(text) == encoding(endoftext=270).encode_ordinary(text)
    assert ENCODING.decode(ENCODING.tokenize(text)) == text.encode()
    assert 270 not in ENCODING.tokenize("<|endoftext|>")


def test_rank_files_give_bytes_only(tmp_path: Path) -> None:
    """The caller names the special tokens; text is spelled with the fewest tokens."""
    path = tmp_path / "tokenizer.model"  # Llama 3's file name; the content decides
    path.write_bytes(b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in RANKS.items()))
    vocabulary = Vocabulary.load(path, size=270, special={265: "<|end|>"}, eos=[265])
    assert vocabulary.tokens[: len(RANKED)] == tuple(RANKED)
    assert (vocabulary.size, vocabulary.eos, dict(vocabulary.special)) == (270, (265,), {265: "<|end|>"})
    assert vocabulary.tokenize("the") == [RANKS[b"the"]]


def test_malformed_rank_lines_are_named(tmp_path: Path) -> None:
    """The error gives their number."""
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"YQ== 0\nYg== one\n")
    with pytest.raises(VocabularyError, match="line 2 is not 'base64 rank'"):
        Vocabulary.load(path)


def test_old_tekken_files_have_the_special_tokens_of_their_time(tmp_path: Path) -> None:
    """They have those of mistral-common, and fillers up to the count."""
    tekkenizer = pytest.importorskip(
        "mistral_common.tokens.tokenizers.tekken", reason="mistral-common is not installed"
    ).Tekkenizer
    vocabulary = load_json(tmp_path, tekken())
    oracle = tekkenizer.from_file(tmp_path / "tekken.json")
    assert dict(vocabulary.special) == {token: oracle.id_to_piece(token) for token in range(24)}
    assert vocabulary.eos == (oracle.eos_id,)
    assert vocabulary.size == oracle.n_words
    for text in ("the quick", " the 日本", "[INST]"):
        assert vocabulary.tokenize(text) == oracle.encode(text, bos=False, eos=False)


def test_new_tekken_files_list_their_special_tokens(tmp_path: Path) -> None:
    """Special tokens have the first ids; ranks beyond the vocabulary are left out."""
    vocabulary = load_json(tmp_path, tekken(version="v11", special=["<unk>", "<s>", "</s>", "[THINK]"]))
    assert dict(vocabulary.special) == {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[THINK]"}
    assert vocabulary.eos == (2,)
    assert vocabulary.tokens[4:] == tuple(RANKED)
    assert vocabulary.token_id("[THINK]") == 3


def test_tekken_vocabularies_can_be_pickled(tmp_path: Path) -> None:
    """The pickle contains the encoder."""
    vocabulary = load_json(tmp_path, tekken())
    assert pickle.loads(pickle.dumps(vocabulary)).tokenize("the quick") == vocabulary.tokenize("the quick")


@pytest.mark.parametrize(
    "change",
    [
        {"config": {}},
        {"config": None},
        {"vocab": []},
        {"vocab": 5},
        {"vocab": [{"rank": 0, "token_bytes": "*"}]},
        {"special_tokens": [{"rank": 99, "token_str": "x"}]},
        {"special_tokens": {}},
    ],
)
def test_malformed_tekken_files_are_refused(change: dict[str, object]) -> None:
    """Anything missing or of the wrong type is an error."""
    with pytest.raises(VocabularyError, match=r"tekken\.json: it is malformed"):
        read_tekken(json.dumps(tekken() | change).encode())


def test_a_pattern_that_tiktoken_refuses_is_named(tmp_path: Path) -> None:
    """The error comes when text is first tokenized: the bytes need no pattern."""
    spec = tekken()
    spec["config"] |= {"pattern": "[]"}  # type: ignore[operator]
    vocabulary = load_json(tmp_path, spec)
    with pytest.raises(VocabularyError, match="tiktoken cannot use its pattern"):
        vocabulary.tokenize("the")


def test_without_all_bytes_tiktoken_is_not_asked() -> None:
    """tiktoken aborts the process on a missing byte; the error here names the byte."""
    ranks = {b"a": 0, b"b": 1, b"ab": 2}
    vocabulary = Vocabulary.load(tiktoken.Encoding("few", pat_str=".", mergeable_ranks=ranks, special_tokens={}))
    assert vocabulary.tokenize("aab") == [0, 2]
    with pytest.raises(VocabularyError, match="byte 0x63"):
        vocabulary.tokenize("abc")
