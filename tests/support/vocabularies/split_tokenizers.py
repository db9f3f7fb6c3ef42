"""Small byte-level BPE tokenizers that split texts as the large ones do."""

from __future__ import annotations

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

STYLES = ("gpt2", "smollm", "digits", "llama", "deepseek", "gaps")
"""How texts are split; ``gaps`` leaves text between its matches."""


def _stages(style: str) -> list[Any]:
    from tokenizers import Regex, pre_tokenizers

    def split(pattern: str) -> Any:
        return pre_tokenizers.Split(Regex(pattern), "isolated")

    patterns = {"llama": [_LLAMA], "deepseek": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK]}
    stages: list[Any] = [split(each) for each in patterns.get(style, [])]
    if style == "gaps":
        stages = [split(r"ab|a(?=b)|\s+(?!\S)")]
    if style in {"smollm", "digits"}:
        stages = [pre_tokenizers.Digits(individual_digits=style == "smollm")]
    return [*stages, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style in {"gpt2", "smollm", "digits"})]


@cache
def split_tokenizer(style: str, size: int = 310) -> Any:
    """A tokenizer of the library ``tokenizers``, trained on a few words, digits, spaces and signs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_stages(style))
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(3 * _TEXTS, trainer)
    return tokenizer


@cache
def split_vocabulary(style: str, size: int = 310) -> Vocabulary:
    """Its vocabulary; ``<|end|>`` is the EOS token."""
    return Vocabulary.load(split_tokenizer(style, size), eos=["<|end|>"])
