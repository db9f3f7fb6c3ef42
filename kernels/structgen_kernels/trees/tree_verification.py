"""Verification of sampled draft tokens: recursive rejection sampling down the trees of a batch.

If the children of a position were sampled from a distribution ``q``, they are tried in order.  A child ``x`` is
accepted with probability ``min(1, p(x) / q(x))``.  On rejection, ``p`` becomes the residual ``max(p - q, 0)``,
renormalised, and ``q`` is renormalised without ``x``.  If all children are rejected, the token is sampled from the last
residual.  If the children were chosen deterministically, or there are none, the token is sampled from ``p``.  The walk
continues at the child with that token, if there is one.  So the output has the distribution of sampling from ``p``
token by token, for any draft tokens.

``p`` is the target model's distribution over the allowed tokens at a temperature; ``q`` is restricted to the same
tokens and renormalised.  A draft token that is not allowed has probability 0 under the restricted ``q`` and is skipped.

A first pass sums both distributions in blocks of columns, for all positions at once.  Then one program per request
walks down its tree.  It reads single logits while children are accepted, both distributions once per rejected child,
and one block per sampled token.  Residuals are recomputed from the scales of the rejections and never stored.  Tokens
are sampled by exponential races, one between blocks and one within the winning block.

Bytes: the first pass reads mask words, allowed logits and distributions once and writes 20 for each block of 1,024;
each rejected child reads mask words, logits and distribution of one position again.

Source: Y. Leviathan et al. (ICML 2023, arXiv 2211.17192) and C. Chen et al. (2023, arXiv 2302.01318) for chains;
W. Jeon et al., "Recursive Speculative Decoding" (2024, arXiv 2402.14160), and Z. Chen et al., "Sequoia" (2024, arXiv
2402.12374), for drafts without replacement; X. Miao et al., "SpecInfer" (2023, arXiv 2305.09781), for drafts with
replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, final

import torch

from structgen_kernels.arguments import FLOATS, check_logits, check_tensor
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, Noise, exponential, random_words
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_walk import TreeWalk
from structgen_kernels.trees.verification_workspace import VerificationWorkspace

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows
    from structgen_kernels.trees.draft_forest import DraftForest

__all__ = ["DraftDistributions", "verify_tree"]

_KERNEL: Final = "verify_tree"
_NODES: Final = 128
"""Nodes per block of the search for a child."""
_TILE: Final = 4
"""Blocks per load of the pass over a row that follows a rejection."""
_TINY: Final = 1e-25
"""A smaller residual is rounding error: the distributions are equal, and the rejection was due to rounding."""
_SEEN: Final = 1e-30
"""Blocks with less probability are not sampled from."""


@final
@dataclass(frozen=True, slots=True)
class DraftDistributions:
    """The distributions that the children of each position were sampled from.

    Attributes:
        values: float32, float16 or bfloat16 ``[distributions, columns]``, log-probabilities or logits, with the
            drafter's temperature applied: ``q`` is the softmax of a row.
        rows: int32 ``[positions]``, the row of ``values`` for the children of each position; -1 if the children were
            chosen deterministically, or there are none.
        replaced: whether each child is tried against the whole ``q``.  The children must then have been sampled with
            replacement, and a token that was sampled twice must be two nodes.  If false, the children may have been
            sampled with or without replacement; repeated tokens are skipped.
    """

    values: Tensor
    rows: Tensor
    replaced: bool = False


def verify_tree(  # noqa: PLR0913  four tables, and settings by name
    logits: Tensor,
    forest: DraftForest,
    distributions: DraftDistributions,
    noise: Noise,
    *,
    masks: MaskRows | None = None,
    temperature: Tensor | None = None,
    workspace: VerificationWorkspace | None = None,
    out: DraftPaths | None = None,
) -> DraftPaths:
    """Return the accepted path of each tree, and the token after it.

    Args:
        logits: the target model's, float32, float16 or bfloat16 ``[positions, columns]``; rows may be strided.
        forest: the draft tokens; children are in the order in which they were sampled.
        distributions: the distributions that the draft tokens were sampled from.
        noise: the noise of each request.
        masks: the mask of each position; None allows every column.
        temperature: float32 ``[positions]``; 0 chooses the first token with the largest logit, None means 1.  A
            negative one gives the status NON_FINITE.
        workspace: buffers to reuse; None allocates them.
        out: the output buffers; None allocates them.  With both, the step allocates nothing.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(positions * columns), and O(columns) for each rejected child.
    """
    size = logits.shape[-1] if masks is None else masks.size
    batch = _Batch(logits, forest, distributions, noise, masks, temperature)
    _check(batch, size)
    out = DraftPaths.fitting(_KERNEL, forest, out)
    if workspace is None:
        workspace = VerificationWorkspace(len(forest.parents), forest.requests, size, forest.device)
    else:
        workspace.check(_KERNEL, forest, size)
    if backend_for(forest.device) == "torch":
        _Verification(batch, workspace, out).run()
    elif forest.requests:
        _launch(batch, workspace, out)
    return out


class _Batch(NamedTuple):
    """The arguments of ``verify_tree``, buffers left out."""

    logits: Tensor
    forest: DraftForest
    distributions: DraftDistributions
    noise: Noise
    masks: MaskRows | None
    temperature: Tensor | None


def _check(batch: _Batch, size: int) -> None:
    logits, forest, distributions, noise, masks, temperature = batch
    check_logits(_KERNEL, logits, size=max(1, size))
    positions, device = forest.positions, forest.device
    check_tensor(_KERNEL, "logits", logits, dtype=FLOATS, shape=(positions, None), device=device)
    check_tensor(_KERNEL, "distributions.values", distributions.values, dtype=FLOATS, dims=2, device=device)
    if distributions.values.shape[1] < size:
        raise KernelArgumentError(
            _KERNEL, "distributions.values", f"has {distributions.values.shape[1]} columns for {size} tokens"
        )
    check_tensor(
        _KERNEL, "distributions.rows", distributions.rows, dtype=torch.int32, shape=(positions,), device=device
    )
    if len(noise) != forest.requests or noise.seeds.device != device:
        raise KernelArgumentError(_KERNEL, "noise", f"must have {forest.requests} requests on {str(device)!r}")
    if masks is not None and (len(masks) != positions or masks.table.device != device):
        raise KernelArgumentError(_KERNEL, "masks", f"must have {positions} rows on {str(device)!r}")
    if temperature is not None:
        check_tensor(_KERNEL, "temperature", temperature, dtype=torch.float32, shape=(positions,), device=device)


def _launch(batch: _Batch, workspace: VerificationWorkspace, out: DraftPaths) -> None:
    from structgen_kernels.trees.jit.tree_verification import sum_positions_kernel, verify_tree_kernel

    logits, forest, distributions, noise, masks, temperature = batch
    size, blocks = workspace.columns, workspace.blocks
    distributions_stride = distributions.values.stride(0)
    shared = (
        logits,
        logits.stride(0),
        temperature,
        distributions.values,
        distributions_stride,
        distributions.rows,
        None if masks is None else masks.arguments(),
        size,
    )
    sums = (workspace.p_maxima, workspace.p_sums, workspace.p_best, workspace.q_maxima, workspace.q_sums, blocks)
    launch(sum_positions_kernel, (forest.positions, blocks), *shared, *sums, BLOCK=workspace.block)
    launch(
        verify_tree_kernel,
        (forest.requests,),
        *shared,
        *sums,
        forest.first,
        forest.parents,
        forest.tokens,
        noise.seeds,
        noise.offsets,
        workspace.residual_sums,
        workspace.refused,
        workspace.scales,
        out.nodes,
        out.accepted,
        out.counts,
        out.tokens,
        out.status,
        REPLACED=distributions.replaced,
        BLOCK=workspace.block,
        TILE=_TILE,
        MAX_BLOCKS=1 << (blocks - 1).bit_length(),
        NODES=_NODES,
        TINY=_TINY,
        SEEN=_SEEN,
        num_warps=8,
        maxnreg=240,  # few programs, so each may use many registers instead of spilling
        enable_fp_fusion=False,  # a recomputed residual must have the same bits everywhere
    )


class _Verification:
    """The reference implementation: all requests descend level by level and try one child at a time."""

    def __init__(self, batch: _Batch, workspace: VerificationWorkspace, out: DraftPaths) -> None:
        logits, forest, distributions, noise, masks, temperature = batch
        self._size, self._block, self._blocks = workspace.columns, workspace.block, workspace.blocks
        self._logits = logits[:, : self._size].to(torch.float32)
        self._distributions, self._noise = distributions, noise
        self._allowed = torch.ones_like(self._logits, dtype=torch.bool) if masks is None else masks.allowed()
        ones = torch.ones(len(logits), dtype=torch.float32, device=logits.device)
        self._temperature = ones if temperature is None else temperature
        self._walk = TreeWalk(forest, out)

    def run(self) -> None:
        """Walk until all requests have ended."""
        walk = self._walk
        while bool(walk.going.any()):
            position = walk.position()
            p, best, status = self._target(position)
            is_distribution = status == CHOSEN
            is_greedy = self._temperature[position] == 0
            left, token, broken = self._try(position, p, walk.going & is_distribution & ~is_greedy)
            token = torch.where(is_greedy, best, torch.where(token < 0, self._sampled(left), token))
            status = torch.where(broken, NON_FINITE, status)
            walk.step(torch.where(status == CHOSEN, token, -1), status)

    def _target(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the target model's distributions ``[requests, size]``, their most probable tokens, and the status."""
        allowed, temperature = self._allowed[position], self._temperature[position]
        divisor = torch.where(temperature == 0, 1.0, torch.where(temperature > 0, temperature, torch.nan))
        scaled = torch.where(allowed, self._logits[position] / divisor[:, None], -torch.inf)
        status = torch.where(scaled.amax(1) == -torch.inf, MASSLESS, CHOSEN)
        status = torch.where(allowed.any(1), status, EMPTY)
        status = torch.where((scaled.isnan() | (scaled == torch.inf)).any(1), NON_FINITE, status)
        calm = torch.where((status == CHOSEN)[:, None], scaled, 0.0)
        return calm.softmax(1), calm.argmax(1), status

    def _drafted(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the draft distributions ``[requests, size]``, whether each exists, and whether it is invalid."""
        distribution = self._distributions.rows[position].to(torch.int64)
        if not len(self._distributions.values):
            nothing = torch.zeros_like(distribution, dtype=torch.bool)
            return torch.zeros_like(self._logits[position]), nothing, nothing
        values = self._distributions.values[distribution.clamp(min=0), : self._size].to(torch.float32)
        values = torch.where(self._allowed[position], values, -torch.inf)
        broken = (values.isnan() | (values == torch.inf)).any(1) & (distribution >= 0)
        sampled = (values.amax(1) > -torch.inf) & (distribution >= 0) & ~broken
        return torch.where(sampled[:, None], values, 0.0).softmax(1), sampled, broken

    def _try(self, position: Tensor, p: Tensor, trying: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Try the children; return the residual of ``p``, the accepted tokens or -1, and which ``q`` are invalid."""
        walk = self._walk
        q, sampled, broken = self._drafted(position)
        broken = broken & trying & (walk.child(None, walk.node) < walk.most)
        trying = trying & sampled
        left, token = p, torch.full_like(position, -1)
        p_total, q_total = torch.ones_like(p[:, 0]), torch.ones_like(p[:, 0])
        gone = torch.zeros_like(p, dtype=torch.bool)
        child = walk.child(None, walk.node)
        while bool((trying & (child < walk.most)).any()):
            draft = walk.token(child).clamp(max=self._size - 1)
            is_draft = torch.arange(self._size, device=p.device) == draft[:, None]
            p_draft, q_draft = left.gather(1, draft[:, None])[:, 0], q.gather(1, draft[:, None])[:, 0]
            if not self._distributions.replaced:
                q_draft = torch.where((gone & is_draft).any(1), 0.0, q_draft)
            tried = trying & (child < walk.most) & (q_draft > 0) & (walk.token(child) < self._size)
            ratio = p_draft * q_total / torch.where(tried, q_draft * p_total, 1.0)
            passes = tried & (p_draft > 0) & ((ratio >= 1) | (self._uniform(child) < ratio))
            token = torch.where(passes, draft, token)
            rest = (left * (q_total / p_total)[:, None] - q).clamp(min=0).masked_fill(is_draft, 0.0)
            total = rest.sum(1)
            refused = tried & ~passes & (total > _TINY)
            trying = trying & ~passes & ~(tried & ~passes & ~refused)
            left = torch.where(refused[:, None], rest, left)
            p_total = torch.where(refused, total, p_total)
            gone = gone | (is_draft & refused[:, None])
            if not self._distributions.replaced:
                q_total = torch.where(refused, torch.where(gone, 0.0, q).sum(1), q_total)
                trying = trying & (q_total > _TINY)
            child = walk.child(None, child)
        return left, token, broken

    def _uniform(self, child: Tensor) -> Tensor:
        words = random_words(self._noise.seeds, self._noise.offsets, STREAMS["accept"], child)
        return words[0].to(torch.float32) * 2.0**-32 + (words[1].to(torch.float32) + 0.5) * 2.0**-64

    def _sampled(self, left: Tensor) -> Tensor:
        """Sample tokens in proportion to weights ``[requests, size]``, int64 ``[requests]``."""
        padded = torch.nn.functional.pad(left, (0, self._blocks * self._block - self._size))
        padded = padded.view(-1, self._blocks, self._block)
        sums = padded.sum(2)
        block = self._winner(torch.where(sums > _SEEN, sums, 0.0), STREAMS["residual_block"])
        weights = padded.gather(1, block[:, None, None].expand(-1, 1, self._block))[:, 0]
        return block * self._block + self._winner(weights, STREAMS["residual_token"])

    def _winner(self, weights: Tensor, stream: int) -> Tensor:
        """Return the winners of exponential races ``[requests, n]``; entries with weight 0 take no part."""
        seeds, offsets = self._noise.seeds[:, None], self._noise.offsets[:, None]
        count = weights.shape[1]
        place = (self._walk.node[:, None] + 1) * count + torch.arange(count, device=weights.device)
        words = random_words(seeds, offsets, stream, place)
        runs = weights > 0
        times = exponential(words[0], words[1]) / torch.where(runs, weights, 1.0)
        return torch.where(runs, times, torch.inf).argmin(1)
