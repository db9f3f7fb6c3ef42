"""Exact inference over chains by a tree of matrix products, with a depth of ``log2(slots)``.

Messages from slot to slot are sequential, which suits a CPU; a GPU waits for the latency of each slot.  Here the
transition matrices of neighbouring slots are multiplied in pairs, and then the products, so that ``log2(slots)``
batched products cover all slots.  Sampling goes down the same tree, from the two ends to the middle of each half.

All numbers are logarithms: in single precision, products below 1e-38 of the largest would underflow.  Maximization and
sampling are invariant to scale, so only the mass of the root shows whether there is a path.

On a GPU, the products are Triton kernels and do not synchronize; everything else is torch.  ``best``, ``draw`` and
``pair_marginals`` first check on the host that every chain has a path.

Bytes, per product: ``(n + m) * k`` numbers are read for each 32 of its rows and columns, and ``n * m`` are written.

Source: M. Dang and S. Ermon (2026, arXiv 2607.07026) for the tree and for sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import torch
from torch import Tensor

from structgen_kernels.arguments import check_tensor
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ChainTree", "log_matmul", "max_matmul", "transition_matrices"]

_NONE: Final = float("-inf")
_CELLS: Final = 1 << 24
"""The most numbers that the reference implementations hold at a time."""

_TILE: Final = 32
"""Rows and columns of a product per program."""

_INNER: Final = 16
"""Terms per ordinary matrix product within a tile."""


def log_matmul(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply matrices of logarithms: ``out[i, j] = log sum_k exp(left[i, k] + right[k, j])``.

    Args:
        left: float32 or float64 ``[..., n, k]`` of any strides; minus infinity for 0, neither NaN nor plus infinity.
        right: likewise ``[..., k, m]``, with the same batch dimensions.
        out: ``[..., n, m]``, contiguous, the output; None allocates it.

    Raises:
        KernelArgumentError: the dtypes, shapes or devices do not match.

    Precision: the relative precision of the dtype, times the largest logarithm of the sum.  Both backends multiply
        exponentials, with every row of ``left`` and every column of ``right`` scaled by its maximum.  A sum that may
        have underflowed, because the large terms of the row meet small terms of the column, is recomputed.  The
        reference implementation recomputes it in double precision, whose exponent range is eight times larger, and then
        term by term.  The kernel recomputes it term by term, for the affected block of 16 terms and 32 x 32 results.
        For float64, the kernel always sums term by term.
    """
    made = _output("log_matmul", left, right, out)
    if backend_for(left.device) == "triton":
        return _product(left, right, made, is_max=False)
    return made.copy_(_log_matmul(left, right)) if left.shape[-1] else made.fill_(_NONE)


def _log_matmul(left: Tensor, right: Tensor) -> Tensor:
    rows, columns = _finite(left.amax(-1, keepdim=True)), _finite(right.amax(-2, keepdim=True))
    product = (left - rows).exp() @ (right - columns).exp()
    made = product.log() + rows + columns
    limits = torch.finfo(left.dtype)
    # An underflowed term is at most the smallest normal number; k of them are negligible beside this.
    unsure = product < left.shape[-1] * limits.tiny / limits.eps
    if not bool(unsure.any()):
        return made
    if left.dtype != torch.float64:
        return torch.where(unsure, _log_matmul(left.double(), right.double()).to(left.dtype), made)
    is_some = (left != _NONE).to(left.dtype) @ (right != _NONE).to(left.dtype) > 0
    made.masked_fill_(~is_some, _NONE)
    at = (unsure & is_some).nonzero(as_tuple=True)
    by_column = right.transpose(-1, -2)
    for begin in range(0, len(at[0]), max(1, _CELLS // left.shape[-1])):
        few = tuple(index[begin : begin + max(1, _CELLS // left.shape[-1])] for index in at)
        made[few] = torch.logsumexp(left[few[:-1]] + by_column[(*few[:-2], few[-1])], dim=-1)
    return made


def max_matmul(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply matrices with maxima in place of sums: ``out[i, j] = max_k left[i, k] + right[k, j]``.

    See ``log_matmul``.  Both backends have the same result bit for bit.
    """
    made = _output("max_matmul", left, right, out)
    if backend_for(left.device) == "triton":
        return _product(left, right, made, is_max=True)
    made.fill_(_NONE)
    width = max(1, _CELLS // max(1, made.numel()))
    for begin in range(0, left.shape[-1], width):
        few = slice(begin, begin + width)
        through = left[..., :, few].unsqueeze(-1) + right[..., few, :].unsqueeze(-3)
        torch.maximum(made, through.amax(-2), out=made)
    return made


def transition_matrices(
    weights: Tensor, source: Tensor, target: Tensor, label: Tensor, states: int, *, is_max: bool = False
) -> Tensor:
    """Return the log weight of the edges between each two states: the sum over parallel edges, or the maximum.

    Args:
        weights: log weight of every label in every slot, ``[batch, slots, labels]``.
        source: int64 ``[edges]``, the source state of each edge.
        target: int64 ``[edges]``, the target state of each edge.
        label: int64 ``[edges]``, the label of each edge.
        states: the number of states.
        is_max: whether to take the maximum over parallel edges instead of the sum.

    Returns:
        ``[batch, slots, states, states]``.
    """
    edges = weights[..., label]
    places = (source * states + target).expand(edges.shape)
    largest = edges.new_full((*edges.shape[:-1], states * states), _NONE).scatter_reduce(-1, places, edges, "amax")
    if not is_max:
        shares = (edges - _finite(largest).gather(-1, places)).exp()
        largest = torch.zeros_like(largest).scatter_add(-1, places, shares).log() + _finite(largest)
    return largest.view(*edges.shape[:-1], states, states)


@final
class ChainTree:
    """A binary tree of products of the transitions of neighbouring slots, for a batch of chains; immutable.

    Args:
        transitions: log weight of each transition between states in each slot, ``[batch, slots, states, states]``.
        initial: log weight of starting in each state, ``[states]``.
        final: log weight of ending in each state, ``[states]``.
        is_max: whether to take the maximum over paths instead of the sum.

    Attributes:
        total: log weight of all paths, or of the best one, ``[batch]``; minus infinity if there is none.

    Raises:
        ValueError: the shapes do not match.

    Complexity: O(slots x states^3) work in O(log slots) products.
    """

    def __init__(self, transitions: Tensor, initial: Tensor, final: Tensor, *, is_max: bool = False) -> None:
        if transitions.dim() != 4 or transitions.shape[2:] != (len(initial), len(final)):
            raise ValueError(
                f"transitions must be [batch, slots, states, states] for {len(initial)} states; "
                f"found the shape {tuple(transitions.shape)}"
            )
        self.is_max = is_max
        self._ends = initial[:, None] + final[None, :]
        self._slots = transitions.shape[1]
        self._multiply = max_matmul if is_max else log_matmul
        # Node i of level l covers the slots from i * 2^l on; the last of an odd number is copied to the next level.
        self._levels = [transitions]
        while (nodes := self._levels[-1]).shape[1] > 1:
            pairs = self._multiply(nodes[:, :-1:2], nodes[:, 1::2])
            self._levels.append(torch.cat([pairs, nodes[:, pairs.shape[1] * 2 :]], dim=1))
        root = self._levels[-1][:, 0] if self._slots else _identity(transitions)
        self._root = (root + self._ends).flatten(1)
        self.total: Tensor = self._root.amax(1) if is_max else torch.logsumexp(self._root, 1)

    @property
    def is_possible(self) -> Tensor:
        """Whether there is any path, bool ``[batch]``."""
        return self.total != _NONE

    def best(self) -> Tensor:
        """Return the states of a path of the largest weight, int64 ``[batch, slots + 1]``; the tree must be of maxima.

        Raises:
            ValueError: the tree is of sums, or there is no path.
        """
        if not self.is_max:
            raise ValueError("the best path needs a tree of maxima: ChainTree(..., is_max=True)")
        return self._descend(lambda weights: weights.argmax(-1))

    def draw(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample the states of a path by its weight, int64 ``[batch, slots + 1]``; the tree must be of sums.

        The ends are sampled first, then the middle state between each two known states, level by level.

        Raises:
            ValueError: the tree is of maxima, or there is no path.
        """
        if self.is_max:
            raise ValueError("draws need a tree of sums: ChainTree(..., is_max=False)")

        def chosen(weights: Tensor) -> Tensor:
            shares = (weights - weights.amax(-1, keepdim=True)).exp()
            return torch.multinomial(shares.flatten(0, -2), 1, generator=generator).view(weights.shape[:-1])

        return self._descend(chosen)

    def pair_marginals(self) -> Tensor:
        """Return the log-probability of each transition in each slot, ``[batch, slots, states, states]``.

        In a tree of maxima: the log weight of the best path through the transition, less that of the best path.

        Raises:
            ValueError: there is no path.
        """
        self._check()
        outside = self._ends.expand(len(self._root), 1, *self._ends.shape)
        for nodes in reversed(self._levels[:-1]):
            pairs = nodes.shape[1] // 2
            left, right = nodes[:, : 2 * pairs : 2], nodes[:, 1 : 2 * pairs : 2]
            around = outside[:, :pairs]
            below = nodes.new_empty(nodes.shape)
            below[:, : 2 * pairs : 2] = self._multiply(around, right.transpose(-1, -2))
            below[:, 1 : 2 * pairs : 2] = self._multiply(left.transpose(-1, -2), around)
            below[:, 2 * pairs :] = outside[:, pairs:]
            outside = below
        return outside[:, : self._slots] + self._levels[0] - self.total[:, None, None, None]

    def _descend(self, choose: Callable[[Tensor], Tensor]) -> Tensor:
        self._check()
        batch, states = len(self._root), len(self._ends)
        ends = choose(self._root.unsqueeze(1)).squeeze(1)
        # The first state of every node of a level, and the last state of the path.
        path = torch.stack([ends // states, ends % states], dim=1)
        if self._slots == 0:
            return path[:, :1]
        several = torch.arange(batch, device=path.device)[:, None]
        for nodes in reversed(self._levels[:-1]):
            count = nodes.shape[1]
            pairs = count // 2
            at = torch.arange(pairs, device=path.device)[None, :]
            left = nodes[:, : 2 * pairs : 2][several, at, path[:, :pairs]]
            right = nodes[:, 1 : 2 * pairs : 2][several, at, :, path[:, 1 : pairs + 1]]
            refined = path.new_empty((batch, count + 1))
            refined[:, 0::2] = path[:, : count // 2 + 1]
            refined[:, 1 : 2 * pairs : 2] = choose(left + right)
            refined[:, -1] = path[:, -1]
            path = refined
        return path

    def _check(self) -> None:
        if not bool(self.is_possible.all()):
            where = int((~self.is_possible).nonzero()[0])
            raise ValueError(f"chain {where} has no path; check is_possible first")


def _output(kernel: str, left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    """Check the factors, and return the output."""
    if left.dtype not in (torch.float32, torch.float64) or left.dim() < 2:
        raise KernelArgumentError(kernel, "left", "must be float32 or float64 matrices")
    if right.dtype != left.dtype or right.shape[:-1] != (*left.shape[:-2], left.shape[-1]):
        wanted = f"{str(left.dtype).removeprefix('torch.')} {[*left.shape[:-2], left.shape[-1], 'any']}"
        raise KernelArgumentError(kernel, "right", f"must be {wanted}, not {right.dtype} {list(right.shape)}")
    if left.device != right.device:
        raise KernelArgumentError(kernel, "right", f"must be on {str(left.device)!r}, not on {str(right.device)!r}")
    shape = (*left.shape[:-1], right.shape[-1])
    if out is None:
        return torch.empty(shape, dtype=left.dtype, device=left.device)
    check_tensor(kernel, "out", out, dtype=left.dtype, shape=shape, device=left.device)
    if not out.is_contiguous():
        raise KernelArgumentError(kernel, "out", "must be contiguous")
    return out


def _product(left: Tensor, right: Tensor, made: Tensor, *, is_max: bool) -> Tensor:
    from structgen_kernels.canvases.jit.chain_tree import log_matmul_kernel, max_matmul_kernel

    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    if not made.numel():
        return made
    # The kernel takes two batch dimensions; more are flattened, which may copy.
    lead = (1, 1, *left.shape[:-2])[-2:] if left.dim() <= 4 else (1, -1)
    several, others = left.reshape(*lead, rows, inner), right.reshape(*lead, inner, columns)
    batch, nodes = several.shape[:2]
    kernel = max_matmul_kernel if is_max else log_matmul_kernel
    limits = torch.finfo(left.dtype)
    options = {"IS_SCALED": left.dtype == torch.float32, "SURE": _INNER * limits.tiny / limits.eps, "INNER": _INNER}
    launch(
        kernel,
        (batch * nodes, -(-rows // _TILE), -(-columns // _TILE)),
        several,
        *several.stride(),
        others,
        *others.stride(),
        made,
        nodes,
        rows,
        inner,
        columns,
        TILE=_TILE,
        **({} if is_max else options),
    )
    return made


def _finite(values: Tensor) -> Tensor:
    """Replace minus infinity by 0, so that a difference is not NaN."""
    return values.masked_fill(values == _NONE, 0.0)


def _identity(transitions: Tensor) -> Tensor:
    """The product of no slots: the identity, ``[batch, states, states]``."""
    states = transitions.shape[-1]
    one = transitions.new_full((states, states), _NONE).fill_diagonal_(0.0)
    return one.expand(len(transitions), states, states)
