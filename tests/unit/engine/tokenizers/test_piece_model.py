"""Canonical tokens of SentencePiece models: what the library itself writes, for small models with equal scores."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from typing import Final

import pytest

from structgen.engine.canonical import canonical_tokens
from structgen.engine.mask import allowed_ids
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import ArgumentError

sentencepiece = pytest.importorskip("sentencepiece", reason="the sentencepiece library is not installed")

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
IDENTITY: Final = {3: 1, 4: 0, 5: 1}  # a space before the text; none is removed; they are written as a mark


def number(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + number(rest) if rest else bytes([low])


def field(at: int, value: bytes | int | float) -> bytes:
    """A field of a message of protocol buffers."""
    if isinstance(value, bytes):
        return number(at << 3 | 2) + number(len(value)) + value
    return (
        number(at << 3 | 5) + struct.pack("<f", value) if isinstance(value, float) else number(at << 3) + number(value)
    )


def model(pieces: dict[str, float], *, bytes_: bool = False, normalizer: dict[int, int | bytes] = IDENTITY) -> bytes:
    """A serialized BPE model."""
    every = [
        ("<unk>", 0.0, UNKNOWN),
        ("</s>", 0.0, CONTROL),
        *((text, score, NORMAL) for text, score in pieces.items()),
    ]
    if bytes_:
        every += [(f"<0x{value:02X}>", 0.0, BYTE) for value in range(256)]
    return made(every, bytes_=bytes_, normalizer=normalizer)


def made(
    every: list[tuple[str, float, int]], *, bytes_: bool, normalizer: dict[int, int | bytes] = IDENTITY, kind: int = 2
) -> bytes:
    written = [field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in every]
    trainer = field(3, kind) + field(35, int(bytes_))
    return b"".join((*written, field(2, trainer), field(3, b"".join(field(*each) for each in normalizer.items()))))


def loaded(data: bytes) -> Vocabulary:
    return Vocabulary.load(sentencepiece.SentencePieceProcessor(model_proto=data))


def written(vocabulary: Vocabulary, text: str, after: str = "|") -> list[int]:
    """The tokens of a text after a character with which nothing is merged, as the library writes them."""
    assert vocabulary.encoder is not None
    before = list(vocabulary.encoder(after))
    tokens = list(vocabulary.encoder(after + text))
    assert tokens[: len(before)] == before
    return tokens[len(before) :]


def spelled(vocabulary: Vocabulary, tokens: list[int], after: str = "|") -> bool:
    try:
        text = vocabulary.decode(tokens).decode()
    except UnicodeDecodeError:
        return False
    return written(vocabulary, text, after) == tokens


def random_pieces(chance: random.Random, scores: int) -> dict[str, float]:
    """Characters, and pieces of up to five of them, of few scores."""
    letters = chance.choice(("a▁", "ab", "ab▁", "abé"))
    pieces = {"|": -99.0, **{letter: -50.0 - at for at, letter in enumerate(letters)}}
    for _ in range(chance.randint(2, 9)):
        text = "".join(chance.choice(letters) for _ in range(chance.randint(2, 5)))
        pieces.setdefault(text, -float(chance.randint(1, scores)))
    return pieces


@pytest.mark.parametrize("scores", [1, 2, 30])
@pytest.mark.parametrize("count", [12, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_all_short_sequences(scores: int, count: int) -> None:
    """A sequence is canonical iff the library writes it, also where pieces have equal scores."""
    chance = random.Random(scores)
    seen = [0, 0, 0]
    for _ in range(count):
        pieces = random_pieces(chance, scores)
        vocabulary = loaded(model(pieces))
        try:
            canonical = canonical_tokens(vocabulary)
        except ArgumentError as error:
            assert "a merge comes before the merges of its parts" in str(error)  # noqa: PT017
            seen[2] += 1
            continue
        texts = [token for token, data in enumerate(vocabulary.tokens) if data and data != b"|"]
        for length in (1, 2, 3):
            every = list(map(list, itertools.product(texts, repeat=length)))
            for tokens in every if len(every) < 150 else chance.sample(every, 150):
                expected = spelled(vocabulary, tokens)
                seen[expected] += 1
                assert canonical.is_canonical(tokens) == expected, (
                    pieces,
                    [vocabulary.tokens[each] for each in tokens],
                )
    assert min(seen[:2]) > 10 * count
    assert seen[2] < count // 2


def test_runs_of_spaces() -> None:
    """Runs whose pieces all have the same score are written from the left, as long as there are pieces."""
    pieces = {"|": -20.0, "▁": -21.0, "a": -22.0, "▁a": -1.0, **{"▁" * size: -1e9 for size in range(2, 17)}}
    vocabulary = loaded(model(pieces, bytes_=True))
    canonical = canonical_tokens(vocabulary)
    runs = {size: vocabulary.tokens.index(b" " * size) for size in range(1, 17)}
    for one, other in itertools.product(runs, repeat=2):
        tokens = [runs[one], runs[other]]
        assert canonical.is_canonical(tokens) == spelled(vocabulary, tokens) == (one == 16)
    for text in ("  a", "                    a a", "é  \n a", " " * 50):
        assert canonical.is_canonical(written(vocabulary, text))


def test_masks_hold_what_the_library_goes_on_with() -> None:
    """With byte fallback."""
    pieces = {"|": -9.0, "▁": -10.0, "a": -11.0, "b": -12.0, "ab": -1.0, "▁ab": -1.0, "aba": -1.0, "▁▁": -2.0}
    vocabulary = loaded(model(pieces, bytes_=True))
    canonical = canonical_tokens(vocabulary)
    chance = random.Random(2)
    for _ in range(80):
        tokens = written(vocabulary, "".join(chance.choice("ab é\n") for _ in range(chance.randint(1, 9))))
        for count in range(len(tokens)):
            state = canonical.after_all(tokens[:count])
            assert state is not None
            assert tokens[count] in allowed_ids(canonical.mask(state), vocabulary.size)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (model({"a": -1.0}, normalizer={3: 1, 4: 1, 5: 1}), "normalizer"),
        (model({"a": -1.0}, normalizer={3: 1, 4: 0, 5: 0}), "normalizer"),
        (model({"a": -1.0, "ab": -1.0}), "a character that is no piece"),
        (made([("<unk>", 0.0, UNKNOWN), ("a", -1.0, NORMAL), ("<t>", 0.0, USER)], bytes_=False), "user-defined"),
        (made([("<unk>", 0.0, UNKNOWN), ("a", -1.0, NORMAL), ("b", 0.0, UNUSED)], bytes_=False), "unused"),
        (made([("<unk>", 0.0, UNKNOWN), ("a", -1.0, NORMAL)], bytes_=False, kind=1), "not BPE"),
    ],
)
def test_other_models_are_refused_by_name(data: bytes, named: str) -> None:
    """Before anything is generated."""
    with pytest.raises(ArgumentError, match=named):
        canonical_tokens(loaded(data))


@pytest.mark.nightly  # seconds to read
def test_a_large_model() -> None:
    """Mistral's, whose runs of spaces have equal scores."""
    package = pytest.importorskip("mistral_common", reason="mistral-common ships a SentencePiece model")
    vocabulary = Vocabulary.load(Path(package.__file__).parent / "data" / "tokenizer.model.v1")
    canonical = canonical_tokens(vocabulary)
    ids = {data: token for token, data in reversed(list(enumerate(vocabulary.tokens))) if data}
    text = Path(__file__).read_text()
    chance = random.Random(1)
    counts = [0, 0]
    for _ in range(600):
        start = chance.randrange(len(text) - 40)
        added = chr(chance.choice([0x20, 0x2028, chance.randrange(0x10000, 0x2FFFF)]))
        piece = text[start : start + chance.randint(1, 40)] + added + " " * chance.randint(0, 40)
        tokens = written(vocabulary, piece, "\n")
        place = chance.randrange(len(tokens))
        data = vocabulary.tokens[tokens[place]]
        cut = chance.randrange(len(data) + 1)
        other = [ids[part] for part in (data[:cut], data[cut:]) if part in ids and part]
        for each in (tokens, [*tokens[:place], *other, *tokens[place + 1 :]], [*tokens[:place], chance.choice(tokens)]):
            expected = spelled(vocabulary, each, "\n")
            counts[expected] += 1
            assert canonical.is_canonical(each) == expected, [vocabulary.tokens[token] for token in each]
    assert min(counts) > 200
