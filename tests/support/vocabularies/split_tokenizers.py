"""Small BPE tokenizers that split texts as the large ones do: byte-level ones, and some as SentencePiece makes them."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from structgen.engine import Vocabulary

_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEXTS = [
    "a  b\n\n  ab's it's  12 345 \n a'  'll we'll ''t . , .. ,'a  \n\n \n\tb ba bab abba é èé 😀 一二 三",
    "ab ab aab aba 1 12 123 1234 12345 a1 1a  1 \n1 's's 'S 'T ab's aaaa aaa aa bbb",
]

STYLES = ("gpt2", "smollm", "digits", "llama", "deepseek", "gaps", "qwen", "llama2", "mistral", "gemma")
"""How texts are split.

``gaps`` leaves text between its matches; ``qwen`` normalises, and has added tokens that are text; ``llama2`` and those
after it write spaces as a mark, and characters without a piece as bytes.
"""

MARKED = ("llama2", "mistral", "gemma")
ADDED = ("<think>", "</think>", "<b")


def _stages(style: str) -> list[Any]:
    from tokenizers import Regex, pre_tokenizers

    def split(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    patterns = {"llama": [_LLAMA], "qwen": [_LLAMA], "deepseek": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK]}
    stages: list[Any] = [split(each) for each in patterns.get(style, [])]
    if style == "gaps":
        stages = [split(r"ab|a(?=b)|\s+(?!\S)")]
    if style in {"smollm", "digits"}:
        stages = [pre_tokenizers.Digits(individual_digits=style == "smollm")]
    return [*stages, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style in {"gpt2", "smollm", "digits"})]


@cache
def split_tokenizer(style: str, size: int = 310) -> Any:
    """A tokenizer of the library ``tokenizers``, trained on a few words, digits, spaces and signs."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if style in MARKED:
        return _marked_tokenizer(style, size)
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_stages(style))
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(3 * _TEXTS, trainer)
    if style == "qwen":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.add_tokens([AddedToken(each, normalized=each == "<b") for each in ADDED])
    return tokenizer


def _marked_tokenizer(style: str, size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    trained: Any = Tokenizer(models.BPE())
    if style == "mistral":
        trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=True)
    else:
        trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(
        3 * _TEXTS, trainers.BpeTrainer(vocab_size=size - 256, special_tokens=["<unk>", "<|end|>"], show_progress=False)
    )
    spec = json.loads(trained.to_str())
    model = spec["model"]
    unseen = {"é", "一", "\t", "\n"}  # written as bytes
    pieces = [piece for piece in sorted(model["vocab"], key=model["vocab"].get) if unseen.isdisjoint(piece)]
    names = [*pieces[:2], *(f"<0x{byte:02X}>" for byte in range(256)), *pieces[2:]]
    model["vocab"] = {piece: token for token, piece in enumerate(names)}
    model["merges"] = [pair for pair in model["merges"] if unseen.isdisjoint("".join(pair))]
    model.update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    for each in spec["added_tokens"]:
        each["id"] = model["vocab"][each["content"]]
    made: Any = Tokenizer.from_str(json.dumps(spec))
    if style == "llama2":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if style == "gemma":
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


@cache
def split_vocabulary(style: str, size: int = 310) -> Vocabulary:
    """Its vocabulary; ``<|end|>`` is the EOS token."""
    return Vocabulary.load(split_tokenizer(style, size), eos=["<|end|>"])


def written_tokens(style: str, size: int, text: str) -> list[int]:
    """The tokens that the library writes for a text; where it adds a space before it, for a text after a line break."""
    encode = split_tokenizer(style, size).encode
    if style not in {"llama2", "mistral"}:
        return list(encode(text, add_special_tokens=False).ids)
    before = list(encode("\n", add_special_tokens=False).ids)
    tokens = list(encode("\n" + text, add_special_tokens=False).ids)
    assert tokens[: len(before)] == before
    return tokens[len(before) :]
