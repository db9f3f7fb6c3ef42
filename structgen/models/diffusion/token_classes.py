"""A partition of a vocabulary: what a language does not tell apart.

A language of canvases knows tokens by class, so that logits are asked about classes.  Whoever answers lays the classes
out in a way of its own first: lists of tokens for a native pass, tables on a GPU.  A layout takes longer than a row of
logits, so it is made once and lives as long as the language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from numpy.typing import NDArray

__all__ = ["TokenClasses"]

Layout = TypeVar("Layout")


@final
class TokenClasses:
    """A partition of a vocabulary; immutable.

    Args:
        of: int32 ``[vocabulary.size]``, the class of every token.
        count: how many classes there are, some perhaps without tokens.

    Attributes:
        sizes: int64 ``[count]``, tokens of each class.
    """

    __slots__ = ("__weakref__", "_layouts", "count", "of", "sizes")

    def __init__(self, of: NDArray[np.int32], count: int) -> None:
        self.of = of
        self.count = count
        self.sizes: NDArray[np.int64] = np.bincount(of, minlength=count)
        self._layouts: dict[Hashable, Any] = {}

    def layout(self, key: Hashable, make: Callable[[NDArray[np.int32], int], Layout]) -> Layout:
        """Return what ``make(of, count)`` returned for ``key``, which says how the classes are laid out and where."""
        if key not in self._layouts:
            self._layouts[key] = make(self.of, self.count)
        made: Layout = self._layouts[key]
        return made

    def __repr__(self) -> str:
        return f"<TokenClasses {self.count} of {len(self.of)} tokens>"
