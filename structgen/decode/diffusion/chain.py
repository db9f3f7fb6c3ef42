"""Exact inference over the runs of an automaton, one edge for each slot of a canvas.

The states after each slot form a chain, so that everything about all canvases of a regular language follows from
messages that are passed along it: with (max, +) the most probable completion, with (log-sum, +) the mass of all of
them, exact draws and exact marginals.  All is done in logarithms: 128 slots at a probability of 1e-3 are 1e-384.

Runs are what is counted.  A deterministic automaton has one for each text; of a nondeterministic one a text has as
many, and a token that joins two states by two edges counts twice.

Sources: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061) for the maximum;
M. Dang and S. Ermon (2026, arXiv 2607.07026) for draws and marginals of the mean-field posterior.  Here the last slot
must leave an accepting state, not merely a live one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np
from structgen_kernels import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Chain", "Edges"]


@final
class Edges:
    """The edges of an automaton, grouped for messages in both directions; immutable.

    Args:
        states: how many there are; state 0 is the start.
        labels: how many there are.
        final: bool ``[states]``: where a run may end.
        source, target, label: int32 ``[edges]``, in any order.

    Attributes:
        source, target, label: by increasing source.
    """

    __slots__ = ("by_label", "by_source", "by_target", "final", "label", "labels", "source", "states", "target")

    def __init__(
        self,
        states: int,
        labels: int,
        final: NDArray[np.bool_],
        source: NDArray[np.int32],
        target: NDArray[np.int32],
        label: NDArray[np.int32],
    ) -> None:
        order = np.argsort(source, kind="stable")
        self.states, self.labels, self.final = states, labels, final
        self.source, self.target, self.label = source[order], target[order], label[order]
        self.by_source = self._grouped(self.source, states)
        self.by_target = self._grouped(self.target, states)
        self.by_label = self._grouped(self.label, labels)

    def _grouped(self, keys: NDArray[np.int32], groups: int) -> _native.EdgeGroups:
        order = np.argsort(keys, kind="stable")
        begin = np.searchsorted(keys[order], np.arange(groups + 1)).astype(np.int64)
        edges = self.source[order], self.target[order], self.label[order]
        return _native.EdgeGroups(begin, *edges, states=self.states, labels=self.labels)


@final
class Chain:
    """The messages of one canvas in one semiring.

    Args:
        edges: of the automaton.
        weights: log weight of every label in every slot, float64 ``[slots, labels]``.
        is_max: whether alternatives are compared, or added.

    Attributes:
        backward: log weight of what goes on from each state after each count of slots, float64 ``[slots + 1, states]``.

    Complexity: O(slots x edges).
    """

    __slots__ = ("_forward", "backward", "edges", "is_max", "weights")

    def __init__(self, edges: Edges, weights: NDArray[np.float64], *, is_max: bool) -> None:
        self.edges = edges
        self.weights = weights
        self.is_max = is_max
        self._forward: NDArray[np.float64] | None = None
        self.backward = edges.by_source.backward(weights, np.where(edges.final, 0.0, -np.inf), is_max)

    @property
    def total(self) -> float:
        """Log weight of all runs, or of the best one."""
        return float(self.backward[0, 0])

    def forward(self) -> NDArray[np.float64]:
        """Log weight of what leads to each state after each count of slots, float64 ``[slots + 1, states]``."""
        if self._forward is None:
            first = np.full(self.edges.states, -np.inf)
            first[0] = 0.0
            self._forward = self.edges.by_target.forward(self.weights, first, self.is_max)
        return self._forward

    def run(self, uniform: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Walk from the start to acceptance; there must be some run.

        Args:
            uniform: a number below 1 for each slot, to draw each edge by the weight of all runs that take it; without
                them the best run is taken, of equal ones that of the first edges.

        Returns:
            The edge of every slot, ``[slots]``.
        """
        return self.edges.by_source.run(self.weights, self.backward, np.zeros(0) if uniform is None else uniform)

    def label_masses(self) -> NDArray[np.float64]:
        """Log of the mass around each label: that of all runs which have the label in the slot, without its own weight.

        Returns:
            float64 ``[slots, labels]``, not normalised.
        """
        return self.edges.by_label.label_masses(self.forward(), self.backward, self.is_max)
