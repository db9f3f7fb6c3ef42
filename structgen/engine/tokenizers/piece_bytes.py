"""From the pieces of a tokenizer to bytes: the byte-level alphabet, and the ``decoder`` of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from structgen.errors import VocabularyError

__all__ = ["PieceBytes", "decoder_chain", "flatten", "from_byte_level", "piece_bytes"]

_ITSELF = frozenset([*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)])
_OUTSIDE = 0xFFFD  # any character above U+00FF: one that Latin-1 cannot encode


def _alphabet() -> dict[int, int]:
    others = [byte for byte in range(256) if byte not in _ITSELF]
    table = dict.fromkeys(others, _OUTSIDE)
    table.update({0x100 + place: byte for place, byte in enumerate(others)})
    return table


_TO_LATIN_1 = _alphabet()


def from_byte_level(piece: str) -> bytes:
    """Return the bytes of ``piece``.

    A piece with any character outside the alphabet is plain UTF-8: so the decoder of the
    ``tokenizers`` library treats added tokens such as ``"<｜User｜>"``.
    """
    try:
        return piece.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode("utf-8", "surrogatepass")


PieceBytes = Callable[[str], bytes]
_Step = Callable[[str], "str | bytes"]
_Spec = Mapping[str, object]

_SUPPORTED = "BPEDecoder, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip, WordPiece"
_LOWER_ONE_EIGHTH_BLOCK = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's stand-in for the space


def flatten(spec: object, inner: str) -> list[_Spec]:
    """List the steps of a ``Sequence`` of steps, nested or not, in order; none for null."""
    steps: list[_Spec] = []
    pending = [spec]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            if item.get("type") == "Sequence":
                members = item.get(inner)
                pending.extend(reversed(members if isinstance(members, list) else []))
            else:
                steps.append(item)
    return steps


def decoder_chain(spec: _Spec) -> list[_Spec]:
    """List the steps of the decoder; if there is none, the steps that the normalizer and pre-tokenizer imply.

    Raises:
        VocabularyError: there is no decoder and nothing else determines the bytes of a piece.
    """
    chain = flatten(spec.get("decoder"), "decoders")
    model = spec.get("model")
    byte_fallback = isinstance(model, Mapping) and model.get("byte_fallback") is True
    if not chain:
        chain = _implied(spec)
    if byte_fallback and all(step.get("type") != "ByteFallback" for step in chain):
        chain.insert(0, {"type": "ByteFallback"})
    if not chain:
        kind = model.get("type") if isinstance(model, Mapping) else None
        raise VocabularyError(
            "tokenizer.json",
            "the bytes of its tokens are not defined",
            evidence=f"model {kind!r} has no decoder, so spaces that belong to no token join them",
            remedy="set the tokenizer's decoder, or pass the bytes: Vocabulary([b'...', ...])",
        )
    return chain


def _implied(spec: _Spec) -> list[_Spec]:
    before = flatten(spec.get("normalizer"), "normalizers") + flatten(spec.get("pre_tokenizer"), "pretokenizers")
    for step in before:
        if step.get("type") in ("ByteLevel", "Metaspace"):
            return [step]
        if step.get("type") == "Replace" and _pattern(step) == " " and isinstance(step.get("content"), str):
            return [{"type": "Replace", "pattern": {"String": step["content"]}, "content": " "}]
    return []


def _pattern(step: _Spec) -> str | None:
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    return text if isinstance(text, str) else None


def piece_bytes(chain: list[_Spec]) -> PieceBytes:
    """Compose the steps of ``chain`` into one function.

    Raises:
        VocabularyError: a step is unknown, or its effect on a piece depends on the pieces around it.
    """
    steps: list[_Step] = []
    joined = in_bytes = False
    for spec in chain:
        kind = spec.get("type")
        if kind == "Strip" and joined:
            continue  # the ends of the text
        if kind == "Fuse":
            joined = True
            continue
        if in_bytes or (joined and not (kind == "Replace" and len(_pattern(spec) or "") == 1)):
            raise _refused(spec, "it comes after the pieces are joined")
        steps.append(_step(spec))
        in_bytes = kind == "ByteLevel"
        joined = joined or in_bytes
    if steps == [from_byte_level]:
        return from_byte_level

    def convert(piece: str) -> bytes:
        for step in steps:
            made = step(piece)
            if isinstance(made, bytes):
                return made
            piece = made
        return piece.encode("utf-8", "surrogatepass")

    return convert


def _step(spec: _Spec) -> _Step:
    match spec.get("type"):
        case "ByteLevel":
            return from_byte_level
        case "ByteFallback":
            return byte_or_text
        case "Metaspace":
            mark = _text(spec, "replacement", _LOWER_ONE_EIGHTH_BLOCK)
            return lambda piece: piece.replace(mark, " ")
        case "Replace":
            old, new = _pattern(spec), _text(spec, "content", "")
            if not old:
                raise _refused(spec, "only replacing a fixed text is well defined per token")
            return lambda piece: piece.replace(old, new)
        case "Strip":
            return _strip(spec)
        case "WordPiece":
            prefix = _text(spec, "prefix", "##")
            return lambda piece: piece[len(prefix) :] if piece.startswith(prefix) else " " + piece
        case "BPEDecoder":
            suffix = _text(spec, "suffix", "</w>")
            return lambda piece: piece.replace(suffix, " ")
        case _:
            raise _refused(spec, "its effect on one token is not known")


def _strip(spec: _Spec) -> _Step:
    character = _text(spec, "content", " ")
    start, stop = spec.get("start", 0), spec.get("stop", 0)
    if not isinstance(start, int) or not isinstance(stop, int) or len(character) != 1:
        raise _refused(spec, "it is malformed")

    def strip(piece: str) -> str:
        left = len(piece) - len(piece.lstrip(character))
        right = len(piece) - len(piece.rstrip(character))
        return piece[min(left, start) : max(0, len(piece) - min(right, stop))]

    return strip


def byte_or_text(piece: str) -> str | bytes:
    """Return the byte that ``<0xNN>`` names, or the piece itself."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes.fromhex(piece[3:5])
        except ValueError:
            pass
    return piece


def _text(spec: _Spec, name: str, default: str) -> str:
    value = spec.get(name, default)
    if not isinstance(value, str):
        raise _refused(spec, f"{name} is not a text")
    return value


def _refused(spec: _Spec, why: str) -> VocabularyError:
    return VocabularyError(
        "tokenizer.json",
        f"decoder step {spec.get('type')!r} is not supported here",
        evidence=why,
        remedy=f"supported are {_SUPPORTED}; or pass the bytes of the tokens: Vocabulary([b'...', ...])",
    )
