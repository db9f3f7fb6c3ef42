"""Forward and backward messages over the runs of an automaton, along the slots of a batch of canvases, as logarithms.

The weight of all runs to a state and from a state, as a sum or as the maximum, gives decoders the totals, marginals and
samples of runs.  ``structgen.decode.diffusion.regular`` defines the quantities.

Messages are float64.  128 slots at a probability of 1e-3 have the log weight -884, where float32 has steps of 6e-5.  On
a GPU, additions and maxima in double precision cost little beside the latency of a slot.  Maxima are bit for bit those
of the CPU.  Sums use float32 for the exponentials and logarithms of differences; the error is at most 1e-6 per slot,
whatever the magnitude.  The reference implementation uses float64.

Bytes, for a batch of 8 canvases of 128 slots, 151 states and 170 labels: 697 KB of weights are read; 1.25 MB of
messages are written and read again one slot later, from the L1 cache.  The bound is latency, not bandwidth: one program
per canvas waits 128 times for a load, an exponential, a logarithm, a store and a barrier.

Sources: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061); M. Dang and
S. Ermon (2026, arXiv 2607.07026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.canvases.chain_edges import ChainEdges

__all__ = ["chain_backward", "chain_forward", "chain_label_masses", "check_weights"]

_WARPS: Final = 4


def chain_backward(weights: Tensor, edges: ChainEdges, *, is_max: bool, out: Tensor | None = None) -> Tensor:
    """Return the log weight of the runs from each state at each boundary of slots to acceptance.

    Args:
        weights: log weight of every label in every slot, float32 or float64 ``[batch, slots, labels]``, contiguous in
            the labels.  NaN and plus infinity count as minus infinity.
        edges: the edges of the automaton.
        is_max: whether to take the maximum over runs instead of the sum.
        out: float64 ``[batch, slots + 1, states]``, contiguous, the output; None allocates it.

    Returns:
        ``out``.  ``out[:, 0, 0]`` is the weight of all runs, or of the best run; minus infinity if there is none.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(edges) per slot of a canvas; slots are sequential.
    """
    return _messages("chain_backward", weights, edges, out, is_max=is_max)


def chain_forward(weights: Tensor, edges: ChainEdges, *, is_max: bool, out: Tensor | None = None) -> Tensor:
    """Return the log weight of the runs from the start to each state at each boundary: see ``chain_backward``."""
    return _messages("chain_forward", weights, edges, out, is_max=is_max)


def chain_label_masses(
    forward: Tensor, backward: Tensor, edges: ChainEdges, *, is_max: bool, out: Tensor | None = None
) -> Tensor:
    """Return, for each slot and label, the log mass of the runs with the label in the slot, without its own weight.

    Args:
        forward: from ``chain_forward``.
        backward: from ``chain_backward``.
        edges: the edges of the automaton.
        is_max: whether to take the maximum over runs instead of the sum.
        out: float64 ``[batch, slots, labels]``, contiguous, the output; None allocates it.

    Returns:
        ``out``, not normalised: ``out + weights - total`` is the log-probability of each label.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(edges) per slot; slots are parallel.
    """
    kernel = "chain_label_masses"
    for name, messages in (("forward", forward), ("backward", backward)):
        shape = (*forward.shape[:2], edges.states)
        check_tensor(kernel, name, messages, dtype=torch.float64, shape=shape, device=edges.device)
        if not messages.is_contiguous() or not messages.shape[1]:
            raise KernelArgumentError(kernel, name, "must be contiguous, with a row for each of slots + 1 boundaries")
    batch, slots = forward.shape[0], forward.shape[1] - 1
    made = _output(kernel, out, (batch, slots, edges.labels), edges.device)
    if backend_for(edges.device) == "torch":
        through = forward[:, :-1, edges.source.long()] + backward[:, 1:, edges.target.long()]
        return _reduced(through, edges.label.long(), made, is_max=is_max)
    if made.numel():
        from structgen_kernels.canvases.jit.chain_messages import chain_label_masses_kernel

        groups = edges.by_label
        launch(
            chain_label_masses_kernel,
            (batch * slots,),
            forward,
            backward,
            slots,
            edges.states,
            edges.labels,
            made,
            *groups.arguments(),
            IS_MAX=is_max,
            **groups.constants(),
            num_warps=_WARPS,
            num_stages=1,
        )
    return made


def check_weights(kernel: str, weights: Tensor, edges: ChainEdges) -> None:
    """Check log weights ``[batch, slots, labels]``.

    Raises:
        KernelArgumentError: the weights have the wrong dtype, shape or device.
    """
    types = (torch.float32, torch.float64)
    known = weights if weights.numel() else torch.zeros_like(weights, memory_format=torch.contiguous_format)
    check_tensor(kernel, "weights", known, dtype=types, shape=(None, None, edges.labels), device=edges.device)


def _messages(kernel: str, weights: Tensor, edges: ChainEdges, out: Tensor | None, *, is_max: bool) -> Tensor:
    check_weights(kernel, weights, edges)
    batch, slots = weights.shape[:2]
    made = _output(kernel, out, (batch, slots + 1, edges.states), edges.device)
    is_backward = kernel == "chain_backward"
    ends = edges.final if is_backward else edges.initial
    if backend_for(edges.device) == "torch":
        known = torch.where(weights < torch.inf, weights, -torch.inf).to(torch.float64)
        here, there = (edges.source, edges.target) if is_backward else (edges.target, edges.source)
        label, keys, others = edges.label.long(), here.long(), there.long()
        made[:, slots if is_backward else 0] = ends
        for slot in reversed(range(slots)) if is_backward else range(slots):
            before, after = (slot + 1, slot) if is_backward else (slot, slot + 1)
            _reduced(known[:, slot, label] + made[:, before, others], keys, made[:, after], is_max=is_max)
    elif batch:
        from structgen_kernels.canvases.jit.chain_messages import chain_messages_kernel

        groups = edges.by_source if is_backward else edges.by_target
        launch(
            chain_messages_kernel,
            (batch,),
            weights,
            weights.stride(0),
            weights.stride(1),
            slots,
            ends,
            edges.states,
            made,
            *groups.arguments(),
            IS_BACKWARD=is_backward,
            IS_MAX=is_max,
            **groups.constants(),
            num_warps=_WARPS,
            num_stages=1,  # a slot reads what the slot before has written, so loads must not be pipelined
        )
    return made


def _reduced(values: Tensor, keys: Tensor, out: Tensor, *, is_max: bool) -> Tensor:
    """Reduce values ``[..., edges]`` by group into ``out``, ``[..., groups]``."""
    places = keys.expand(values.shape)
    out.fill_(-torch.inf).scatter_reduce_(-1, places, values, "amax")
    if not is_max:
        base = out.masked_fill(out == -torch.inf, 0.0)
        shares = (values - base.gather(-1, places)).exp()
        out.copy_(torch.zeros_like(out).scatter_add_(-1, places, shares).log_().add_(base))
    return out


def _output(kernel: str, out: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=torch.float64, device=device)
    check_tensor(kernel, "out", out, dtype=torch.float64, shape=shape, device=device)
    if not out.is_contiguous():
        raise KernelArgumentError(kernel, "out", "must be contiguous")
    return out
