"""The children of a node, one after the other: the most probable ones, or such as are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from structgen.decode.sampler import inverse_cdf
from structgen.decode.speculative.draft_tree import Drawn
from structgen.decode.urn import TokenUrn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.shapes.growth import Law

__all__ = ["Children"]


@final
class Children:
    """Adds children to a node as they are asked for.

    Drawn ones come without replacement, each from what those before it left of the law: the order is that of
    Gumbel-top-k (Kool et al. 2019, arXiv 1903.06059), but how many there will be need not be known.

    Args:
        tree: where to add them.
        node: the parent.
        law: of what follows it; its forced tokens have been added.
        generator: draws them; None chooses the most probable ones.

    Attributes:
        left: the probability of all that was not added.

    Raises:
        ValueError: they are to be drawn, and the law is not dense.

    Complexity: O(V) for each of the first two that are drawn, O(V / 512 + 512) for each further one; O(1) where they
        are chosen.
    """

    def __init__(self, tree: DraftTree, node: int, law: Law, generator: np.random.Generator | None) -> None:
        if generator is not None and law.dense is None:
            raise ValueError("Law: children are to be drawn, so dense must be given; found None")
        self._tree = tree
        self._node = node
        self._law = law
        self._generator = generator
        self._tokens: list[int] = []
        self._urn: TokenUrn | None = None  # of all but the first; few nodes get a second child
        self._first_left = 1.0
        self.left = 1.0

    def share(self) -> float:
        """The probability of the next one, where it is chosen and not drawn; 0 where there is none."""
        probabilities = self._law.probabilities
        return float(probabilities[len(self._tokens)]) if len(self._tokens) < len(probabilities) else 0.0

    def add(self) -> int | None:
        """Add the next one and return its node; None where no token is left."""
        dense, generator = self._law.dense, self._generator
        if generator is None or dense is None:
            probability = self.share()
            if not probability:
                return None
            token = int(self._law.tokens[len(self._tokens)])
            self.left = max(0.0, self.left - probability)
        else:
            drawn = self._draw(dense, generator)
            if drawn is None:
                return None
            token, probability = drawn, float(dense[drawn])
        self._tokens.append(token)
        if generator is not None and dense is not None:
            self._tree.drawn[self._node] = Drawn(dense, tuple(self._tokens))
        return self._tree.add(self._node, token, probability)

    def _draw(self, dense: NDArray[np.float64], generator: np.random.Generator) -> int | None:
        """Draw a token that was not drawn before."""
        if not self._tokens:
            token = inverse_cdf(dense, generator.random())
            self.left = self._first_left = max(0.0, 1.0 - float(dense[token]))
            return token
        if self._urn is None:
            rest = dense.copy()
            rest[self._tokens[0]] = 0.0
            if not rest.any():
                return None
            self._urn = TokenUrn(rest / rest.max(), generator)
        if self._urn.is_empty:
            return None
        token = self._urn.take()
        self.left = self._first_left * self._urn.left
        return token
