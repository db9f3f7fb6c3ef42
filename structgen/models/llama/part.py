"""``Part``: the part of one sequence in a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from structgen.models.llama.cache import KeyValues
    from structgen.models.protocol import Mixture
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Part"]


class Part(NamedTuple):
    """The part of one sequence in a forward pass.

    Attributes:
        token_ids: the new tokens, at least one.
        cache: the keys and values of the earlier tokens.
        all_positions: whether to return logits after every token or only after the last.
        mixtures: mixtures that replace the tokens, equally many; None for the tokens themselves.
        tree: a tree after the tokens, with logits after each of its tokens; or None.
    """

    token_ids: Sequence[int]
    cache: KeyValues
    all_positions: bool
    mixtures: Sequence[Mixture] | None = None
    tree: TokenTree | None = None

    @property
    def start(self) -> int:
        """The position of the first token, and of its cache entry."""
        return self.cache.length

    @property
    def rows(self) -> int:
        """Number of tokens in the pass, those of the tree included."""
        return len(self.token_ids) + (0 if self.tree is None else len(self.tree.token_ids))

    @property
    def end(self) -> int:
        """End of the new cache entries; without a tree also the position after the last token."""
        return self.cache.length + self.rows

    @property
    def ids(self) -> Sequence[int]:
        """The tokens in the pass, those of the tree last."""
        return self.token_ids if self.tree is None else [*self.token_ids, *self.tree.token_ids]

    @property
    def positions(self) -> Sequence[int]:
        """The position of each token in the pass."""
        start, end = self.start, self.start + len(self.token_ids)
        positions = range(start, end)
        return positions if self.tree is None else [*positions, *(end + depth for depth in self.tree.depths())]

    @property
    def logits_rows(self) -> int:
        """Number of last tokens of the pass after which logits are returned."""
        return self.rows if self.all_positions else 1 + self.rows - len(self.token_ids)
