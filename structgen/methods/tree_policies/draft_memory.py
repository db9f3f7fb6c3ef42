"""How many guesses fit into memory.

Source: S. Yildirim, D. Chen, "SpecMemo" (2025, arXiv 2506.01986), which bounds the buffers of candidates by a model of
their sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self, final

__all__ = ["DraftMemory"]


@final
@dataclass(frozen=True, slots=True)
class DraftMemory:
    """What the nodes of a tree hold during a pass, in bytes.

    Attributes:
        node: of each node: its keys and values in all layers, and its row of logits.
        pair: of each pair of a node and a position that it may look at: its entry of the attention mask.

    Raises:
        ValueError: a number is negative, or a node holds nothing.
    """

    node: int
    pair: int = 0

    def __post_init__(self) -> None:
        if self.node < 1 or self.pair < 0:
            raise ValueError(
                f"DraftMemory: node must be positive and pair not negative; found {self.node!r} and {self.pair!r}"
            )

    @classmethod
    def of(
        cls,
        *,
        layers: int,
        key_value_heads: int,
        head_size: int,
        vocabulary_size: int,
        number: int = 4,
        mask_number: int = 4,
    ) -> Self:
        """The memory of a transformer.

        Args:
            layers: how many layers have keys and values.
            key_value_heads: heads of keys and values in each.
            head_size: numbers of a head.
            vocabulary_size: numbers of a row of logits, of 4 bytes each.
            number: bytes of a number in the cache.
            mask_number: bytes of an entry of the attention mask.

        Raises:
            ValueError: a number is below 1.
        """
        numbers = (layers, key_value_heads, head_size, vocabulary_size, number, mask_number)
        if min(numbers) < 1:
            raise ValueError(f"DraftMemory: all numbers must be at least 1; found {numbers!r}")
        return cls(2 * layers * key_value_heads * head_size * number + 4 * vocabulary_size, mask_number)

    def size(self, nodes: int, context: int) -> int:
        """The bytes of a tree behind ``context`` tokens."""
        return nodes * self.node + nodes * (context + nodes) * self.pair

    def most_nodes(self, limit: int, context: int, *, sequences: int = 1) -> int:
        """The most nodes that a tree may have so that the trees of all sequences together fit.

        Args:
            limit: bytes.
            context: tokens that stand before each tree.
            sequences: how many are run in one pass.

        Raises:
            ValueError: ``limit`` or ``context`` is negative, or ``sequences`` below 1.
        """
        if limit < 0 or context < 0 or sequences < 1:
            raise ValueError(
                "DraftMemory: limit and context must not be negative and sequences at least 1; "
                f"found {limit!r}, {context!r} and {sequences!r}"
            )
        share = limit // sequences
        linear = self.node + context * self.pair
        if not self.pair:
            return share // linear
        # The largest n with pair n^2 + linear n <= share.
        return (math.isqrt(linear * linear + 4 * self.pair * share) - linear) // (2 * self.pair)
