"""The markers with which models learn to fill in the middle, and prompts that are made of them.

A model that was trained for it reads what stands before and behind a hole, each after a marker, and writes the filling
after a third one.  Others read only what stands before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.engine.vocabulary import Vocabulary

__all__ = ["Markers", "find_markers"]

# Prefix, suffix, middle, as they are spelled; None where the filling follows the prefix, which then comes last.
_FAMILIES: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("[PREFIX]", "[SUFFIX]", None),  # Codestral
)


class Markers(NamedTuple):
    """Ids of the tokens that mark what stands before and behind a hole.

    Attributes:
        prefix: comes before the text before the hole.
        suffix: comes before the text behind the hole.
        middle: comes before the filling; None where the order is suffix, prefix, filling.
    """

    prefix: int
    suffix: int
    middle: int | None

    def prompt(self, before: Sequence[int], behind: Sequence[int]) -> list[int]:
        """Return what a model reads that is to fill a hole."""
        if self.middle is None:
            return [self.suffix, *behind, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *behind, self.middle]


def find_markers(vocabulary: Vocabulary) -> Markers | None:
    """Return the markers of a vocabulary, or None where it has none.

    Some tokenizers list them as special tokens, others as ordinary ones.

    Source: M. Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (2022, arXiv 2207.14255);
        the spellings are those of the tokenizers of the models that are named in the table.
    """
    special = {text: token for token, text in reversed([*vocabulary.special.items()])}
    wanted = {
        name.encode(): name for family in _FAMILIES for name in family if name is not None and name not in special
    }
    for token, piece in enumerate(vocabulary.tokens):
        if piece in wanted:
            special.setdefault(wanted[piece], token)
    for prefix, suffix, middle in _FAMILIES:
        if prefix in special and suffix in special and (middle is None or middle in special):
            return Markers(special[prefix], special[suffix], None if middle is None else special[middle])
    return None
