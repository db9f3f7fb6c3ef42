"""Messages along the slots of a batch of canvases, over the runs of an automaton, in logarithms.

Everything that a decoder asks about all runs follows from the weight of those that lead to a state, and of those that
go on from it: of all together, or of the best.  What is meant is what ``structgen.decode.diffusion.regular`` says.

Messages are float64.  128 slots at a probability of 1e-3 are -884 in logarithms, where float32 counts in steps of 6e-5;
an addition and a maximum in double precision cost a GPU little beside waiting for the slot before.  Maxima are
therefore those of the processor bit for bit.  Sums take exponentials and logarithms of differences in float32, and
differ from exact ones by at most 1e-6 a slot, whatever their size; the reference implementation takes them in float64.

Bytes, of a batch of 8 canvases of 128 slots, 151 states and 170 labels: the weights are read, 697 KB, the messages
written, 1.25 MB, and read again a slot later, from the nearest cache.  Bandwidth is no limit: one program a canvas
waits 128 times for a load, an exponential, a logarithm, a store and a barrier.

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
    """Return the log weight of what goes on from each state after each count of slots.

    Args:
        weights: log weight of every label in every slot, float32 or float64 ``[batch, slots, labels]``; only labels
            must lie next to each other.  What is no number, or plus infinity, counts as minus infinity.
        edges: of the automaton.
        is_max: whether alternatives are compared, or added.
        out: float64 ``[batch, slots + 1, states]``, contiguous, which is written; without it one is made.

    Returns:
        ``out``.  ``out[:, 0, 0]`` is the weight of all runs, or of the best one; minus infinity where there is none.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.

    Complexity: O(edges) for each slot of a canvas, one slot after the other.
    """
    return _messages("chain_backward", weights, edges, out, is_max=is_max)


def chain_forward(weights: Tensor, edges: ChainEdges, *, is_max: bool, out: Tensor | None = None) -> Tensor:
    """Return the log weight of what leads to each state after each count of slots.  See ``chain_backward``."""
    return _messages("chain_forward", weights, edges, out, is_max=is_max)


def chain_label_masses(
    forward: Tensor, backward: Tensor, edges: ChainEdges, *, is_max: bool, out: Tensor | None = None
) -> Tensor:
    """Return log of the mass around each label: of all runs which have it in the slot, without its own weight.

    Args:
        forward: from ``chain_forward``.
        backward: from ``chain_backward``.
        edges: of the automaton.
        is_max: whether alternatives are compared, or added.
        out: float64 ``[batch, slots, labels]``, contiguous, which is written; without it one is made.

    Returns:
        ``out``, not normalised: with the weights, and less the total, it is the log probability of each label.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.

    Complexity: O(edges) for each slot, all at once.
    """
    kernel = "chain_label_masses"
    for name, messages in (("forward", forward), ("backward", backward)):
        shape = (*forward.shape[:2], edges.states)
        check_tensor(kernel, name, messages, dtype=torch.float64, shape=shape, device=edges.device)
        if not messages.is_contiguous() or not messages.shape[1]:
            raise KernelArgumentError(kernel, name, "must be contiguous, with a row before each slot and one after all")
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
        KernelArgumentError: they are of the wrong type, shape or device.
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
            num_stages=1,  # what a slot reads was written in the slot before: nothing may be loaded ahead
        )
    return made


def _reduced(values: Tensor, keys: Tensor, out: Tensor, *, is_max: bool) -> Tensor:
    """Reduce the values ``[..., edges]`` of each group to ``out``, ``[..., groups]``."""
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
