"""How a tokenizer encodes a text, read from its file: the stages that split it, its classes of characters, its merges.

Read are encodings by byte pairs: a byte-level tokenizer.json with ``ByteLevel``, ``Split`` and ``Digits``, also with
NFC; the tokenizers of GGUF files, which are put into that form; a tokenizer.json made of a SentencePiece model, with
spaces written as a mark and with byte fallback, and such a model itself; and ranks of tiktoken.  All else is refused by
name.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.cache import fetch, keep
from structgen.engine.tokenizers.merges import Merges
from structgen.engine.tokenizers.model_file import SPACE_MARK, SentencePieceEncoder, TokenizerJsonEncoder
from structgen.engine.tokenizers.piece_bytes import byte_or_text, from_byte_level
from structgen.engine.tokenizers.piece_model import read_piece_model
from structgen.engine.tokenizers.pretokens import Pretokens, Stage
from structgen.engine.tokenizers.split_pattern import Program, read_pattern, unsupported
from structgen.engine.tokenizers.table import Encoder, need
from structgen.engine.tokenizers.text_rules import AddedContents, AddedToken, ByteSpelling, ComposedText, TextRule
from structgen.engine.tokenizers.tiktoken_ranks import RanksEncoder
from structgen.memory_cache import TERMS, ContentCache

__all__ = ["Encoding", "read_encoding_of"]

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NUMERIC: Final = "(numeric)"  # what Rust's char::is_numeric holds for
_CODE_POINTS: Final = 0x110000
_SURROGATES: Final = slice(0xD800, 0xE000)
_Members: TypeAlias = Callable[[str, str], str]  # the characters of a text that are outside of a class


@final
@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tokenizer encodes a text.

    Attributes:
        pretokens: where a text may be split.
        merges: which tokens may be adjacent in a piece.
        rules: what else the text obeys; the rule of added tokens is the first.
        added: added tokens that the tokenizer looks for in the text.
    """

    pretokens: Pretokens
    merges: Merges
    rules: tuple[TextRule, ...] = ()
    added: AddedContents | None = None


def read_encoding_of(encode: Encoder | None, tokens: Sequence[bytes]) -> Encoding:
    """Read how the tokenizer of a vocabulary encodes.

    Args:
        encode: the encoder of the vocabulary.
        tokens: the bytes of its tokens, without special ones.

    Raises:
        ArgumentError: its canonical tokens are not decided exactly.
        VocabularyError: the library of the tokenizer is missing.
    """
    if isinstance(encode, TokenizerJsonEncoder):
        return _read_json(json.loads(encode.content()), tokens)
    if isinstance(encode, RanksEncoder):
        return _read_ranks(encode, tokens)
    if isinstance(encode, SentencePieceEncoder):
        return _read_pieces(encode.content(), tokens)
    found = "it has no tokenizer" if encode is None else f"its tokenizer is a {type(encode).__name__}"
    raise unsupported(
        "only BPE of a tokenizer.json, tekken.json, SentencePiece model or byte-level GGUF file is read", evidence=found
    )


def _read_pieces(data: bytes, tokens: Sequence[bytes]) -> Encoding:
    """SentencePiece merges any two parts that are a piece together, the one with the best score first."""
    model = read_piece_model(data)
    ids = {piece.text: piece.token for piece in model.pieces if not piece.is_byte}
    bytes_ = {piece.token for piece in model.pieces if piece.is_byte}
    units, spelling = _spelling(ids, bytes_ if model.has_bytes else None, tokens)
    merges: list[tuple[int, int, int]] = []
    ranks: list[int] = []
    last, rank = None, -1
    for piece in sorted(model.pieces, key=lambda piece: (-piece.score, len(piece.text))):
        if piece.is_byte or len(piece.text) == 1:
            continue
        if not all(character in ids for character in piece.text):
            raise unsupported("a piece has a character that is no piece", evidence=f"found {piece.text!r:.60}")
        rank, last = rank + (piece.score != last), piece.score
        parts = [(ids.get(piece.text[:at]), ids.get(piece.text[at:])) for at in range(1, len(piece.text))]
        made = [(left, right, piece.token) for left, right in parts if left is not None and right is not None]
        merges += made
        ranks += [rank] * len(made)
    program = read_pattern(r"[\s\S]+", keeps_gaps=True)
    pretokens = _pretokens([program], _outside_of_tokenizers, "tokenizers", tokens)
    return Encoding(pretokens, Merges(tokens, merges, units, ranks), (spelling,))


def _read_json(spec: Mapping[str, Any], tokens: Sequence[bytes]) -> Encoding:
    model = spec["model"]
    kind = model.get("type") or ("BPE" if "merges" in model else "another kind")
    if kind != "BPE":
        raise unsupported("its model is not BPE", evidence=f"the model is {kind}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise unsupported(f"its model has {name}", evidence=f"found {model[name]!r}")
    normalizers = _flat(spec.get("normalizer"), "normalizers")
    pretokenizers = _flat(spec.get("pre_tokenizer"), "pretokenizers")
    is_marked = any(each["type"] == "Metaspace" for each in pretokenizers) or any(
        each["type"] == "Replace" and each.get("content") == SPACE_MARK for each in normalizers
    )
    added = _added(spec, tokens, is_changed=is_marked)
    rules: list[TextRule] = [] if added is None else [added]
    if is_marked:
        program = _marked(normalizers, pretokenizers)
        merges, spelling = _marked_merges(model, tokens)
        rules.append(spelling)
        if model.get("ignore_merges"):
            _check_whole(merges, tokens)
        return Encoding(
            _pretokens([program], _outside_of_tokenizers, "tokenizers", tokens), merges, tuple(rules), added
        )
    for each in normalizers:
        if each["type"] != "NFC":
            raise unsupported("a normalizer changes the text", evidence=f"found {each['type']}")
    for name in ("byte_fallback", "fuse_unk"):
        if model.get(name):
            raise unsupported(f"its model has {name}", evidence="its spaces have no mark")
    if normalizers:
        rules.append(ComposedText(tokens))
    programs = _programs(pretokenizers)
    merges = Merges(tokens, _json_merges(model, tokens))
    if model.get("ignore_merges"):
        _check_whole(merges, tokens)
    return Encoding(_pretokens(programs, _outside_of_tokenizers, "tokenizers", tokens), merges, tuple(rules), added)


def _added(spec: Mapping[str, Any], tokens: Sequence[bytes], *, is_changed: bool) -> AddedContents | None:
    """The added tokens that are found in texts; None if there are none."""
    found = [
        AddedToken(
            each["id"],
            each["content"].encode(),
            is_first=not each.get("normalized"),
            is_text=not each.get("special") and each["id"] < len(tokens) and bool(tokens[each["id"]]),
        )
        for each in spec.get("added_tokens") or ()
    ]
    if not any(each.is_text for each in found):
        return None
    for each in spec["added_tokens"]:
        for name in ("single_word", "lstrip", "rstrip"):
            if each.get(name):
                raise unsupported(f"an added token has {name}", evidence=f"for instance {each['content']!r}")
    if is_changed:
        raise unsupported(
            "added tokens are found in the text, which is another text after them",
            evidence=f"for instance {next(each.content for each in found if each.is_text)!r}",
        )
    return AddedContents(tokens, found)


def _marked(normalizers: Sequence[Mapping[str, Any]], pretokenizers: Sequence[Mapping[str, Any]]) -> Program:
    """The stage of a tokenizer that writes spaces as a mark; what it adds before a text is left out."""
    splits = False
    for each in normalizers:
        if each["type"] == "Prepend" and each.get("prepend") == SPACE_MARK:
            continue
        if each["type"] == "Replace" and each.get("pattern") == {"String": " "} and each.get("content") == SPACE_MARK:
            continue
        raise unsupported("a normalizer changes the text", evidence=f"found {dict(each)!r:.160}")
    for each in pretokenizers:
        if each["type"] == "Metaspace" and each.get("replacement") == SPACE_MARK:
            splits = splits or bool(each.get("split", True))
        elif each["type"] != "Split" or each.get("pattern") != {"String": " "} or not normalizers:
            raise unsupported("its pre-tokenizer is not read", evidence=f"found {dict(each)!r:.160}")
    return read_pattern(r" [^ ]*|[^ ]+" if splits else r"[\s\S]+", keeps_gaps=True)


def _marked_merges(model: Mapping[str, Any], tokens: Sequence[bytes]) -> tuple[Merges, ByteSpelling]:
    """The merges of characters, and the rule for characters that are written as bytes."""
    ids: Mapping[str, int] = {piece: token for piece, token in model["vocab"].items() if token < len(tokens)}
    bytes_ = {token for piece, token in ids.items() if isinstance(byte_or_text(piece), bytes)}
    units, spelling = _spelling(ids, bytes_ if model.get("byte_fallback") else None, tokens)
    merges = Merges(tokens, _merges(model, ids, lambda piece: piece.replace(SPACE_MARK, " ").encode(), tokens), units)
    return merges, spelling


def _spelling(
    ids: Mapping[str, int], bytes_: Collection[int] | None, tokens: Sequence[bytes]
) -> tuple[list[int], ByteSpelling]:
    """The tokens that a text consists of before anything is merged, and the rule for those that are bytes."""
    if bytes_ is None:
        bytes_ = ()
    elif len(bytes_) != _BYTES:
        raise unsupported("some bytes are no tokens", evidence=f"{len(bytes_)} of {_BYTES} are")
    characters = {piece: token for piece, token in ids.items() if len(piece) == 1 and tokens[token]}
    spelled = {tokens[token] for token in characters.values()}
    if SPACE_MARK in characters:
        spelled.add(SPACE_MARK.encode())  # the tokenizer takes it for a space
    units = [*characters.values(), *(token for token in bytes_ if tokens[token] not in spelled)]
    return units, ByteSpelling(tokens, bytes_, spelled)


_BYTES: Final = 256


def _flat(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [each for inner in part.get(name) or () for each in _flat(inner, name)]


def _programs(parts: Sequence[Mapping[str, Any]]) -> list[Program]:
    programs: list[Program] = []
    is_bytes = False
    for part in parts:
        kind = part["type"]
        if is_bytes:
            raise unsupported("its pre-tokenizer splits bytes", evidence=f"{kind} comes after ByteLevel")
        if kind == "ByteLevel":
            if part.get("add_prefix_space"):
                raise unsupported("a space is added before the text", evidence="ByteLevel has add_prefix_space")
            is_bytes = True
            if part.get("use_regex", True):
                programs.append(read_pattern(_GPT2, keeps_gaps=True))
        elif kind == "Digits":
            programs.append(_digits(is_single=bool(part.get("individual_digits"))))
        elif kind == "Split":
            pattern = part.get("pattern", {}).get("Regex")
            if pattern is None or part.get("behavior") != "Isolated" or part.get("invert"):
                raise unsupported("its pre-tokenizer splits in another way", evidence=f"found {dict(part)!r:.160}")
            programs.append(read_pattern(pattern, keeps_gaps=True))
        else:
            raise unsupported("its pre-tokenizer is not read", evidence=f"found {kind}")
    if not is_bytes:
        raise unsupported("it is not byte-level", evidence="the pre-tokenizer has no ByteLevel")
    return programs


def _digits(*, is_single: bool) -> Program:
    """The stage ``Digits``: each digit, or each run of digits, is a piece."""
    program = read_pattern("a" if is_single else "a+", keeps_gaps=True)
    program.sets[:] = [_NUMERIC]
    return program


def _json_merges(model: Mapping[str, Any], tokens: Sequence[bytes]) -> list[tuple[int, int, int]]:
    ids: dict[str, int] = model["vocab"]
    _check_bytes({tokens[token] for token in ids.values() if token < len(tokens)}, tokens)
    return _merges(model, ids, from_byte_level, tokens)


def _merges(
    model: Mapping[str, Any], ids: Mapping[str, int], text_of: Callable[[str], bytes], tokens: Sequence[bytes]
) -> list[tuple[int, int, int]]:
    merges: list[tuple[int, int, int]] = []
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        whole, one, other = ids[left + right], ids[left], ids[right]
        if whole >= len(tokens) or tokens[whole] != text_of(left + right):
            raise unsupported(
                "a merge makes a token that is no text of the vocabulary",
                evidence=f"found token {whole}, of {left!r} and {right!r}",
            )
        merges.append((one, other, whole))
    return merges


def _read_ranks(encode: RanksEncoder, tokens: Sequence[bytes]) -> Encoding:
    ranked, first = encode.ranked, encode.first
    ids = {piece: rank + first for rank, piece in enumerate(ranked)}
    _check_bytes(ids, tokens)
    pairs: list[tuple[int, int, int]] = []
    for rank, piece in enumerate(ranked):
        splits = [(ids.get(piece[:at], -1), ids.get(piece[at:], -1)) for at in range(1, len(piece))]
        pairs += ((left, right, rank + first) for left, right in splits if left >= 0 <= right)
    merges = Merges(tokens, pairs)
    _check_whole(merges, tokens)
    programs = [read_pattern(encode.pattern, keeps_gaps=False)]
    return Encoding(_pretokens(programs, _outside_of_tiktoken, "tiktoken", tokens), merges)


def _check_bytes(pieces: Container[bytes], tokens: Sequence[bytes]) -> None:
    """Refuse tokens with a byte that is no token: the tokenizer leaves it out, and no merges make them."""
    missing = frozenset(value for value in range(256) if bytes([value]) not in pieces)
    lost = next((data for data in tokens if not missing.isdisjoint(data)), None) if missing else None
    if lost is not None:
        raise unsupported("a token has a byte that is no token", evidence=f"token {lost!r}")


def _check_whole(merges: Merges, tokens: Sequence[bytes]) -> None:
    """Refuse tokens that are written where they are a whole piece, though no merges make them."""
    lost = [token for token, data in enumerate(tokens) if data and not merges.reachable[token]]
    if lost:
        raise unsupported(
            "some tokens are written for whole pieces only, not by merges",
            evidence=f"{len(lost)} tokens, for instance {tokens[lost[0]]!r}",
        )


def _pretokens(programs: Sequence[Program], outside: _Members, library: str, tokens: Sequence[bytes]) -> Pretokens:
    sources = list(dict.fromkeys(source for program in programs for source in program.sets))
    class_of, holds = _classes(sources, outside, library)
    stages = [Stage(program, holds[[sources.index(each) for each in program.sets]]) for program in programs]
    if not stages:
        raise unsupported("a text is one piece", evidence="its pre-tokenizer has no pattern")
    return Pretokens(stages, class_of, tokens)


def _classes(sources: Sequence[str], outside: _Members, library: str) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the class of each code point, and which set holds which class."""
    name = f"{library} {version(library)} {sources!r}"
    key = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    stored = fetch("characters", key)
    if stored is None:
        members = np.stack([_members(source, outside, library) for source in sources])
        stored = zlib.compress(np.packbits(members, axis=1).tobytes(), 1)
        keep("characters", key, stored)
    packed = np.frombuffer(zlib.decompress(stored), dtype=np.uint8).reshape(len(sources), -1)
    members = np.unpackbits(packed, axis=1).astype(np.bool_)
    members[:, _SURROGATES] = members[:, :1]  # they are no characters of a text
    weights = np.left_shift(np.uint64(1), np.arange(len(sources), dtype=np.uint64))
    signatures = (members * weights[:, None]).sum(axis=0, dtype=np.uint64)
    distinct, class_of = np.unique(signatures, return_inverse=True)
    if len(sources) > _MAX_SETS or len(distinct) > _MAX_CLASSES:
        raise unsupported("its split pattern has too many classes", evidence=f"{len(sources)} classes of characters")
    return class_of.astype(np.uint8), (distinct[None, :] & weights[:, None]) != 0


_MAX_SETS: Final = 64
_MAX_CLASSES: Final = 255
_EMPTY_PLANES: Final = ((0x40000, 0xE0000), (0xF0000, 0xFFFFE), (0x100000, 0x10FFFE))
"""Ranges without characters, or for private use: their first code point stands for all."""
_member_cache: Final[ContentCache[NDArray[np.uint8]]] = ContentCache(TERMS)


def _members(source: str, outside: _Members, library: str) -> NDArray[np.bool_]:
    """The characters of a class, as its library decides it."""
    known = _member_cache.get((library, source))
    if known is None:
        members = np.zeros(_CODE_POINTS, dtype=np.bool_)
        if len(source) == 1:
            members[ord(source)] = True
        elif max(map(ord, source)) >= _EMPTY_PLANES[0][0]:
            raise unsupported("its split pattern names rare characters", evidence=f"found {source!r}")
        else:
            asked = np.ones(_CODE_POINTS, dtype=np.bool_)
            asked[_SURROGATES] = False
            for low, high in _EMPTY_PLANES:
                asked[low + 1 : high] = False
            text = np.flatnonzero(asked).astype("<u4").tobytes().decode("utf-32-le")
            members[:] = True
            members[np.frombuffer(outside(source, text).encode("utf-32-le"), dtype="<u4")] = False
            for low, high in _EMPTY_PLANES:
                members[low:high] = members[low]
        known = np.packbits(members)
        _member_cache.put((library, source), known, known.nbytes)
    return np.unpackbits(known, count=_CODE_POINTS).view(np.bool_)


def _outside_of_tokenizers(source: str, text: str) -> str:
    library = need("tokenizers", "to split a text as the tokenizer does")
    if source == _NUMERIC:  # between letters, a piece of one character is a number
        pieces = library.pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str("a" + "a".join(text) + "a")
        numbers = {piece for piece, _ in pieces if len(piece) == 1 and piece != "a"}
        return "".join(each for each in text if each not in numbers)
    rest: str = library.normalizers.Replace(library.Regex(source), "").normalize_str(text)
    return rest


def _outside_of_tiktoken(source: str, text: str) -> str:
    library = need("tiktoken", "to split a text as the tokenizer does")
    single = {bytes([value]): value for value in range(256)}
    inside = library.Encoding("class", pat_str=source, mergeable_ranks=single, special_tokens={})
    found = set(bytes(inside.encode_ordinary(text)).decode())
    return "".join(each for each in text if each not in found)
