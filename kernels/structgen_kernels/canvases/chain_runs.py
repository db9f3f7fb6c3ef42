"""One run of an automaton through each canvas of a batch: the best run, or a run sampled in proportion to its weight.

The walk goes from the start state to acceptance.  In each slot it chooses an edge of the current state by the weight of
the edge plus the backward message of its target (``structgen_kernels.canvases.chain_messages``).

Sampling uses the Gumbel-max trick: each edge's weight is divided by an exponential variate, and the largest wins.  The
variate depends on the seed and the offset of the canvas and slot and on the number of the edge, not on the batch.

Bytes: per slot, the edges of one state with their weights and messages.  In each slot a program waits for two loads
that depend on the state, a reduction in a warp, and two loads that depend on the chosen edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.canvases.chain_messages import check_weights
from structgen_kernels.choices.choice import CHOSEN, EMPTY
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import EmptyRowError, KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, exponential, random_words

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.canvases.chain_edges import ChainEdges
    from structgen_kernels.philox import Noise

__all__ = ["ChainRuns", "chain_best", "chain_draw"]

_BLOCK: Final = 32
"""Edges per block, one per thread of a warp; few states have more."""


@final
@dataclass(frozen=True, slots=True)
class ChainRuns:
    """A run through each canvas.  If there is none, edges and labels are -1 and the total is minus infinity.

    Attributes:
        edges: int32 ``[batch, slots]``, the edge of every slot, as an index into ``ChainEdges``.
        labels: int32 ``[batch, slots]``, the labels of these edges.
        totals: float64 ``[batch]``: the log weight of the best run, or of all runs together.
        status: int32 ``[batch]``: ``CHOSEN``, or ``EMPTY`` if there is no run.
    """

    edges: Tensor
    labels: Tensor
    totals: Tensor
    status: Tensor

    @classmethod
    def empty(cls, batch: int, slots: int, device: torch.device | str) -> Self:
        """Allocate the output buffers of a step."""
        place = torch.device(device)
        return cls(
            torch.empty((batch, slots), dtype=torch.int32, device=place),
            torch.empty((batch, slots), dtype=torch.int32, device=place),
            torch.empty(batch, dtype=torch.float64, device=place),
            torch.empty(batch, dtype=torch.int32, device=place),
        )

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise if a canvas has no run.  Copies ``status`` to the host, which synchronizes.

        Args:
            names: names of the canvases, for messages.

        Raises:
            EmptyRowError: canvases have no run.
        """
        empty = [row for row, status in enumerate(self.status.tolist()) if status != CHOSEN]
        if empty:
            raise EmptyRowError("chain runs", empty, names)


def chain_best(weights: Tensor, edges: ChainEdges, messages: Tensor, *, out: ChainRuns | None = None) -> ChainRuns:
    """Return the best run of each canvas; ties go to the first edge.

    Args:
        weights: as for ``chain_backward``.
        edges: the edges of the automaton.
        messages: the result of ``chain_backward`` for ``weights`` with ``is_max=True``.
        out: the output buffers; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(slots x edges of a state); slots are sequential.
    """
    return _runs("chain_best", weights, edges, messages, None, out)


def chain_draw(
    weights: Tensor, edges: ChainEdges, messages: Tensor, noise: Noise, *, out: ChainRuns | None = None
) -> ChainRuns:
    """Sample a run of each canvas in proportion to its weight.

    Args:
        weights: as for ``chain_backward``.
        edges: the edges of the automaton.
        messages: the result of ``chain_backward`` for ``weights`` with ``is_max=False``.
        noise: noise for ``batch * slots`` rows, canvas by canvas.
        out: the output buffers; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(slots x edges of a state); slots are sequential.
    """
    rows = weights.shape[0] * weights.shape[1] if weights.dim() > 1 else 0
    check_tensor("chain_draw", "noise", noise.seeds, dtype=torch.int64, shape=(rows,), device=edges.device)
    return _runs("chain_draw", weights, edges, messages, noise, out)


def _runs(
    kernel: str, weights: Tensor, edges: ChainEdges, messages: Tensor, noise: Noise | None, out: ChainRuns | None
) -> ChainRuns:
    check_weights(kernel, weights, edges)
    batch, slots = weights.shape[:2]
    shape = (batch, slots + 1, edges.states)
    check_tensor(kernel, "messages", messages, dtype=torch.float64, shape=shape, device=edges.device)
    if not messages.is_contiguous():
        raise KernelArgumentError(kernel, "messages", "must be contiguous")
    made = ChainRuns.empty(batch, slots, edges.device) if out is None else _checked(kernel, out, batch, slots, edges)
    if backend_for(edges.device) == "torch":
        _walk(weights, edges, messages, noise, made)
    elif batch:
        from structgen_kernels.canvases.jit.chain_runs import chain_runs_kernel

        launch(
            chain_runs_kernel,
            (batch,),
            weights,
            weights.stride(0),
            weights.stride(1),
            slots,
            messages,
            edges.states,
            edges.begin,
            edges.target,
            edges.label,
            None if noise is None else noise.seeds,
            None if noise is None else noise.offsets,
            made.edges,
            made.labels,
            made.totals,
            made.status,
            IMPOSSIBLE=EMPTY,
            IS_DRAW=noise is not None,
            STREAM=STREAMS["edge"],
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return made


def _walk(weights: Tensor, edges: ChainEdges, messages: Tensor, noise: Noise | None, made: ChainRuns) -> None:
    """The reference implementation: in each slot it scores all edges; edges with another source have minus infinity."""
    batch, slots = weights.shape[:2]
    known = torch.where(weights < torch.inf, weights, -torch.inf).to(torch.float64)
    label, target = edges.label.long(), edges.target.long()
    number = torch.arange(len(edges), device=edges.device).expand(batch, -1)
    state = torch.zeros(batch, dtype=torch.int64, device=edges.device)
    made.totals.copy_(messages[:, 0, 0])
    possible = made.totals > -torch.inf
    made.status.copy_(torch.where(possible, CHOSEN, EMPTY))
    made.edges.fill_(-1)
    made.labels.fill_(-1)
    for slot in range(slots if len(edges) else 0):
        scores = known[:, slot, label] + messages[:, slot + 1, target]
        if noise is not None:
            base = messages[:, slot].gather(1, state[:, None])
            rows = torch.arange(batch, device=edges.device)[:, None] * slots + slot
            high, low, _, _ = random_words(noise.seeds[rows], noise.offsets[rows], STREAMS["edge"], number)
            scores = scores - base.masked_fill(base == -torch.inf, 0.0) - exponential(high, low).log().to(torch.float64)
        taken = scores.masked_fill(edges.source != state[:, None], -torch.inf).argmax(1)
        made.edges[:, slot] = torch.where(possible, taken, -1)
        made.labels[:, slot] = torch.where(possible, label[taken], -1)
        state = target[taken]


def _checked(kernel: str, out: ChainRuns, batch: int, slots: int, edges: ChainEdges) -> ChainRuns:
    wanted = {
        "edges": (out.edges, torch.int32, (batch, slots)),
        "labels": (out.labels, torch.int32, (batch, slots)),
        "totals": (out.totals, torch.float64, (batch,)),
        "status": (out.status, torch.int32, (batch,)),
    }
    for name, (tensor, dtype, shape) in wanted.items():
        check_tensor(kernel, f"out.{name}", tensor, dtype=dtype, shape=shape, device=edges.device)
        if not tensor.is_contiguous():
            raise KernelArgumentError(kernel, f"out.{name}", "must be contiguous")
    return out
