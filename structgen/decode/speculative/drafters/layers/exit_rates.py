"""How often drafts of each exit layer would have been taken, and which exit and length that speaks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["ExitRates"]

_PRIOR: Final = 1.0
"""What is not known yet counts as so many positions at which one guess in two is right."""


@final
class ExitRates:
    """Rates of acceptance by exit, of which later positions weigh more.

    Source: Entezari Zarch et al. 2025, DEL (arXiv 2504.05598): tokens per layer.  There the head costs
    nothing; here it counts as ``head`` layers, and drafting nothing is a choice as well.

    Args:
        exits: after how many layers a draft may end, each from 1 on.
        layers: how many the network has.
        head: what the output head costs, in layers.
        decay: what a position weighs less with each later one, in (0, 1].
    """

    def __init__(self, exits: Sequence[int], *, layers: int, head: float, decay: float) -> None:
        self.exits = tuple(exits)
        self._layers = layers
        self._head = head
        self._decay = decay
        self._taken = np.zeros(len(self.exits))
        self._seen = 0.0

    def add(self, taken: NDArray[np.float64]) -> None:
        """Note a position: for each exit the probability that its guess is taken there."""
        self._taken = self._taken * self._decay + taken
        self._seen = self._seen * self._decay + 1

    def rates(self) -> NDArray[np.float64]:
        """For each exit how probable it is that its next guess is taken."""
        rates: NDArray[np.float64] = (self._taken + _PRIOR / 2) / (self._seen + _PRIOR)
        return rates

    def tokens_per_layer(self, longest: int) -> NDArray[np.float64]:
        """The expected tokens by cost in layers, ``[exits, longest + 1]``, of a draft of each length.

        With rate ``a``, a draft of ``d`` tokens gives ``1 + a + ... + a ** d`` of them, for ``d`` times the layers up
        to the exit and once the whole network.
        """
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(self.rates()[:, None] ** lengths, axis=1)
        drafts = np.array(self.exits)[:, None] + self._head
        result: NDArray[np.float64] = tokens / (lengths * drafts + self._layers + self._head)
        return result

    def best(self, longest: int) -> tuple[int, int]:
        """The exit and the length of a draft, at most ``longest``, with the most tokens by cost; 0 drafts nothing."""
        values = self.tokens_per_layer(longest)
        at, length = np.unravel_index(int(values.argmax()), values.shape)
        return self.exits[int(at)], int(length)
