"""Two byte-level BPE tokenizers, trained on different texts: different tokens, ids and special tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

from structgen.engine import Vocabulary

PROSE = [
    "the quick brown fox jumps over the lazy dog, and the other dogs bark at the moon until the morning comes",
    "a name is what somebody is called; an age is how old somebody is; a city is where somebody lives",
    "when the rain came down on the harbour, the sailors told each other stories of other harbours",
]
RECORDS = [
    '{"name": "Ada", "age": 36, "city": "London"}, {"name": "Grace", "age": 85, "city": "Arlington"}',
    '{"name": "Alan", "age": 41, "city": "Wilmslow", "tags": ["red", "green"], "active": true}',
    'é ü 😀 {"key": null, "other": false, "number": -12.5e3}',
]


@cache
def bpe_vocabulary(kind: str, size: int = 420) -> Vocabulary:
    """The vocabulary that was trained on ``"prose"`` or on ``"records"``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    special = ["<|end|>", "<|user|>", "<|bot|>"] if kind == "prose" else ["<s>", "</s>", "<|user|>"]
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROSE if kind == "prose" else RECORDS, trainer)
    return Vocabulary.load(tokenizer, eos=["<|end|>" if kind == "prose" else "</s>"])
