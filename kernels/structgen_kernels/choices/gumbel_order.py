"""Sampling without replacement: the tokens of each row in Gumbel-top-k order, a part at a time.

Token ``i`` has the key ``x[i] - log E[i]``.  ``x`` are the logits divided by the temperature; ``E[i]`` is a standard
exponential variate that depends only on the row's seed and offset and on ``i``.  Tokens in descending order of their
keys are a sample without replacement from ``softmax(x)``.  Keys can be recomputed at any time.  So the last key and
token of a part suffice to continue after it, and masking tokens does not change the order of the others.

There is no sort.  A first pass writes the first token and the mass of each chunk of 128 columns.  A second pass takes
the first token of all chunks, recomputes the chunk of that token, and repeats.  The mass that remains is summed over
the remaining tokens, not computed as 1 minus the mass of the sampled ones, so that small masses are accurate.

Bytes: the first pass reads the mask words and the allowed logits once and writes 16 per chunk; the second reads these
and 128 logits per token.  For a row of 131,072 bfloat16 logits: 256 KiB, then 32 KiB and 256 bytes per token.

Source: J. Vieira, "Gumbel-max trick and weighted reservoir sampling" (2014), and W. Kool, H. van Hoof, M. Welling,
"Stochastic Beams and Where to Find Them" (ICML 2019, arXiv 1903.06059), for the order; P. Efraimidis, P. Spirakis,
"Weighted random sampling with a reservoir" (2006), for the distribution of such keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from structgen_kernels.arguments import check_logits, check_tensor
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE
from structgen_kernels.choices.token_order import ORDER_CHUNK, Order, OrderWorkspace
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, Noise, exponential, random_words

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["gumbel_order"]

_KERNEL: Final = "gumbel_order"
_CHUNKS: Final = 16
"""Chunks per program of the first pass."""
_NONE: Final = -(2**63)
_LARGEST_WORD: Final = 0xFFFFFFFF


def gumbel_order(  # noqa: PLR0913  two tensors, and settings by name
    logits: Tensor,
    noise: Noise,
    *,
    masks: MaskRows | None = None,
    temperature: Tensor | None = None,
    count: int = 64,
    after: Order | None = None,
    workspace: OrderWorkspace | None = None,
    out: Order | None = None,
) -> Order:
    """Return the first ``count`` tokens of the order of each row, or the ``count`` tokens after an earlier part.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]``; rows may be strided.
        noise: the noise of each row.
        masks: the mask of each row; None allows every column.
        temperature: float32 ``[rows]``, positive; None means 1.  Rows with another value get the status NON_FINITE.
        count: the number of tokens per row, at least 1.
        after: the part before, from the same logits, noise, masks and temperature.
        workspace: buffers to reuse; None allocates them.
        out: the output buffers, which may be ``after``; None allocates them.  With both, the step allocates nothing.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(columns) per part and O(columns / 128) per token.
    """
    size = logits.shape[-1] if masks is None else masks.size
    batch = _Batch(logits, noise, masks, temperature)
    _check(batch, count, after, size)
    rows, device = len(logits), logits.device
    if out is None:
        out = Order.buffers(rows, count, device)
    elif out.tokens.shape != (rows, count) or out.tokens.device != device or not out.tokens.is_contiguous():
        raise KernelArgumentError(_KERNEL, "out", f"must be for {rows} rows of {count} tokens on {str(device)!r}")
    if backend_for(device) == "torch":
        _order(batch._replace(logits=logits[:, :size]), after, out)
    elif rows:
        if workspace is None:
            workspace = OrderWorkspace(rows, size, device)
        elif workspace.rows < rows or workspace.columns != size or workspace.device != device:
            raise KernelArgumentError(
                _KERNEL,
                "workspace",
                f"is for {workspace.rows} rows of {workspace.columns} tokens on {str(workspace.device)!r}, not for "
                f"{rows} of {size} on {str(device)!r}",
            )
        _launch(batch, after, workspace, out)
    return out


class _Batch(NamedTuple):
    """The rows of logits, and the noise, mask and temperature of each."""

    logits: Tensor
    noise: Noise
    masks: MaskRows | None
    temperature: Tensor | None


def _check(batch: _Batch, count: int, after: Order | None, size: int) -> None:
    logits, noise, masks, temperature = batch
    check_logits(_KERNEL, logits, size=max(1, size))
    rows, device = len(logits), logits.device
    if len(noise) != rows or noise.seeds.device != device:
        raise KernelArgumentError(_KERNEL, "noise", f"must have {rows} rows on {str(device)!r}")
    if masks is not None and (len(masks) != rows or masks.table.device != device):
        raise KernelArgumentError(_KERNEL, "masks", f"must have {rows} rows on {str(device)!r}")
    if temperature is not None:
        check_tensor(_KERNEL, "temperature", temperature, dtype=torch.float32, shape=(rows,), device=device)
    if count < 1:
        raise KernelArgumentError(_KERNEL, "count", f"must be at least 1, not {count}")
    if after is not None and (len(after.tokens) != rows or after.tokens.device != device):
        raise KernelArgumentError(_KERNEL, "after", f"must have {rows} rows on {str(device)!r}")


def _launch(batch: _Batch, after: Order | None, workspace: OrderWorkspace, out: Order) -> None:
    from structgen_kernels.choices.jit.gumbel_order import first_of_chunks_kernel, take_in_order_kernel

    logits, noise, masks, temperature = batch
    rows, size = len(logits), workspace.columns
    chunks = -(-size // ORDER_CHUNK)
    masking = None if masks is None else masks.arguments()
    shared = (logits, logits.stride(0), noise.seeds, noise.offsets, temperature, masking, size)
    buffers = (workspace.firsts, workspace.masses, workspace.maxima, chunks)
    following: tuple[Any, ...] = (None, None, 0)
    inherited: tuple[Any, ...] = (None, None, None)
    if after is not None:
        following = (after.tokens, after.keys, after.tokens.shape[1])
        inherited = (after.log_z, after.log_top, after.status)
    # Without fused multiply-add, so that a recomputed key has the same bits in both kernels.
    launch(
        first_of_chunks_kernel,
        (rows, -(-chunks // _CHUNKS)),
        *shared,
        *buffers,
        *following,
        CHUNK=ORDER_CHUNK,
        CHUNKS=_CHUNKS,
        enable_fp_fusion=False,
    )
    launch(
        take_in_order_kernel,
        (rows,),
        *shared,
        *buffers,
        *inherited,
        out.tokens,
        out.keys,
        out.log_p,
        out.left_log_mass,
        out.log_z,
        out.log_top,
        out.status,
        out.tokens.shape[1],
        CHUNK=ORDER_CHUNK,
        MAX_CHUNKS=max(2, 1 << (chunks - 1).bit_length()),
        enable_fp_fusion=False,
    )


def _order(batch: _Batch, after: Order | None, out: Order) -> None:
    """The reference implementation."""
    logits, noise, masks, temperature = batch
    size, count = logits.shape[1], out.tokens.shape[1]
    allowed = torch.ones_like(logits, dtype=torch.bool) if masks is None else masks.allowed()
    scaled = logits.to(torch.float32)
    if temperature is not None:
        scaled = scaled / torch.where(temperature > 0, temperature, torch.nan)[:, None]
    scaled = torch.where(allowed, scaled, -torch.inf)
    if after is None:
        status = _status(scaled, allowed)
        log_z = torch.where(status == CHOSEN, torch.logsumexp(scaled, 1), -torch.inf)
        log_top = torch.where(status == CHOSEN, scaled.amax(1) - log_z, -torch.inf)
        packed = _packed(_keys(scaled, noise), scaled > -torch.inf)
    else:
        status, log_z, log_top = after.status.clone(), after.log_z.clone(), after.log_top.clone()
        last = _pack(after.keys[:, -1:], after.tokens[:, -1:])
        packed = _packed(_keys(scaled, noise), scaled > -torch.inf)
        packed = torch.where((packed < last) & (after.tokens[:, -1:] >= 0), packed, _NONE)
    packed = torch.where((status == CHOSEN)[:, None], packed, _NONE)
    taken = torch.nn.functional.pad(packed, (0, max(0, count - size)), value=_NONE).topk(count, 1).values
    is_some = taken > _NONE
    tokens = torch.where(is_some, _LARGEST_WORD - (taken & _LARGEST_WORD), 0)
    weights = torch.where(is_some, scaled.gather(1, tokens), -torch.inf)
    following = torch.where((packed > _NONE) & (packed < taken[:, -1:]), scaled, -torch.inf)
    steps = torch.cat([torch.logsumexp(following, 1, keepdim=True), weights.flip(1)], 1)
    left = torch.logcumsumexp(steps, 1)[:, 1:].flip(1)
    if after is None:
        left[:, 0] = log_z
    out.tokens.copy_(torch.where(is_some, tokens, -1))
    out.keys.copy_(torch.where(is_some, _unpacked_key(taken), -torch.inf))
    out.log_p.copy_(torch.where(is_some, weights - log_z[:, None], -torch.inf))
    out.left_log_mass.copy_(torch.where(is_some, left - log_z[:, None], -torch.inf))
    out.log_z.copy_(log_z)
    out.log_top.copy_(log_top)
    out.status.copy_(status)


def _status(scaled: Tensor, allowed: Tensor) -> Tensor:
    """Return the status of each row, int32 ``[rows]``."""
    status = torch.full((len(scaled),), CHOSEN, dtype=torch.int32, device=scaled.device)
    status.masked_fill_(~(scaled > -torch.inf).any(1), MASSLESS)
    status.masked_fill_(~allowed.any(1), EMPTY)
    return status.masked_fill_((scaled.isnan() | (scaled == torch.inf)).any(1), NON_FINITE)


def _keys(scaled: Tensor, noise: Noise) -> Tensor:
    """Return the keys, float32 ``[rows, size]``.  Two tokens share the four random words of one counter."""
    token = torch.arange(scaled.shape[1], device=scaled.device)[None, :].expand_as(scaled)
    words = random_words(noise.seeds[:, None], noise.offsets[:, None], STREAMS["order"], token >> 1)
    is_odd = token % 2 == 1
    sampled = exponential(torch.where(is_odd, words[2], words[0]), torch.where(is_odd, words[3], words[1]))
    return scaled - torch.log(sampled)


def _packed(keys: Tensor, possible: Tensor) -> Tensor:
    tokens = torch.arange(keys.shape[1], device=keys.device)[None, :]
    return torch.where(possible, _pack(keys, tokens), _NONE)


def _pack(keys: Tensor, tokens: Tensor) -> Tensor:
    """Pack keys and tokens into int64 numbers; earlier tokens of the order have larger numbers."""
    bits = keys.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(torch.int64) << 32) | (_LARGEST_WORD - tokens.to(torch.int64))


def _unpacked_key(packed: Tensor) -> Tensor:
    ordered = (packed >> 32).to(torch.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32)
