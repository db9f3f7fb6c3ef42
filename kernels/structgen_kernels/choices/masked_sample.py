"""Sampling of one token per row under a mask, with temperature, top-k, top-p and min-p per row.

One pass over the logits (``chunk_summary``) computes the largest allowed logit and the mass of each chunk of 128
columns.  Then one program per row works on these numbers, 1,024 for 131,072 logits, and reads only some chunks again:

- Without truncation, it samples a chunk by its mass, then a token of that chunk by its weight.  Both are exponential
  races (the Gumbel-max trick).  The distribution is exact: the first arrival in a chunk has the rate of the chunk's
  mass.  That takes 1,152 random numbers for 131,072 tokens.  A race of all tokens would take 131,072, of 10 Philox
  rounds or about 60 integer operations each; reading a bfloat16 logit leaves time for about 17.
- With truncation, the kept tokens are the first in descending order of logits, with ties in order of ids.  The chunks
  give a lower bound on the logit of the last kept token.  For top-k it is the k-th largest maximum.  For top-p it is a
  logit at which the chunks are known to have the mass p, by their maxima, or by their masses less 127 tokens just below
  the bound.  For min-p it is the largest logit plus ``T log min_p``.  Candidates are the allowed tokens from the bound
  on, in the chunks whose maximum reaches it.  Up to 2,048 candidates are gathered once, in order of ids.  A search over
  keys with 4 pivots per step finds the last kept token, then the kept tokens race.  If there are more candidates, the
  search reads the chunks instead, until the remaining candidates fit or the last token is found; a later gather leaves
  out the chunks whose maximum is below the interval.  Min-p alone needs neither a search nor a gather.  Example: 1,024
  chunks of Zipf-like logits (exponents 1 to 2) whose probable ids are close together.  About 50 chunks remain for top-k
  50, with 660 to 760 candidates; 1 to 90 for top-p 0.9 at temperature 0.7, with 12 to 1,340 candidates.  Normal logits
  (standard deviation 3, half of them allowed at random) are harder: top-p 0.9 at temperature 0.8 reads 1,270 chunks on
  average, and up to 2,300.
- At temperature 0, the most probable token is chosen, as by ``masked_argmax``.

Bytes per row of ``n`` logits of ``b`` bytes: ``b * n`` of logits and ``n / 8`` of a dense mask are read once; the
summary, ``n / 16 + 20 * ceil(n / 4096)``, is written and read again; the result is 20.  Without truncation, one chunk
is read, ``128 * b + 16``.  With truncation, 4 are written per chunk above the bound, and ``4 + 128 * b + 16`` are read
once; 8 are written per candidate and read in each step of the search, from the L1 cache.  For top-k and for top-p each,
the search takes the base-4 logarithm of the key range in steps, at most 16 for float32 and 8 for bfloat16, fewer if one
key is left earlier, and then 1 more.  If the candidates do not fit, each step reads the chunks above the bound again.
The race is 1 more pass, or 2 with ``Uniforms``.

Truncation is that of ``structgen.decode.step.sampler``: temperature, then top-k, then top-p on the renormalised rest
(the fewest most probable tokens with a total probability of at least ``p``), then min-p.

Source: the race is the Gumbel-max trick, C. Maddison, D. Tarlow, T. Minka, "A* Sampling" (NeurIPS 2014), section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias, final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.choices.choice import Choice
from structgen_kernels.choices.chunk_summary import chunk_summary
from structgen_kernels.choices.masked_argmax import finish, settle
from structgen_kernels.choices.step_workspace import CANDIDATES, CHUNK, Workspace, workspace_for
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, Noise, exponential, random_words

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["Shape", "Uniforms", "masked_sample"]

_REALS: Final = (torch.float64, torch.float32)
_ZERO_BITS: Final = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
_MIN_KEY: Final = -0x7F800001  # the key of minus infinity
_REACH: Final = 16
_PIVOTS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """The temperature and the truncation of each row.

    The values are on the device; only the kernel reads them.

    Attributes:
        temperature: float64 or float32 ``[rows]``, at least 0; 0 chooses the most probable token.
        top_k: int32 ``[rows]``; 0, or the size of the vocabulary or more, is no truncation.
        top_p: float64 or float32 ``[rows]``, above 0; 1 or more is no truncation.
        min_p: float64 or float32 ``[rows]``, at most 1; 0 is no truncation.

    Raises:
        KernelArgumentError: a tensor has another dtype or shape, or the devices differ.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def __post_init__(self) -> None:
        check_tensor("shape", "temperature", self.temperature, dtype=_REALS, dims=1)
        rows, device = self.temperature.shape, self.temperature.device
        check_tensor("shape", "top_k", self.top_k, dtype=torch.int32, shape=rows, device=device)
        check_tensor("shape", "top_p", self.top_p, dtype=_REALS, shape=rows, device=device)
        check_tensor("shape", "min_p", self.min_p, dtype=_REALS, shape=rows, device=device)

    @classmethod
    def of(
        cls,
        rows: int,
        device: torch.device | str = "cpu",
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> Self:
        """Make the same shape for ``rows`` rows."""

        def spread(value: float) -> Tensor:
            return torch.full((rows,), value, dtype=torch.float64, device=device)

        ks = torch.full((rows,), top_k, dtype=torch.int32, device=device)
        return cls(spread(temperature), ks, spread(top_p), spread(min_p))

    def __len__(self) -> int:
        return len(self.temperature)


@final
@dataclass(frozen=True, slots=True)
class Uniforms:
    """Uniform numbers instead of noise: tokens are sampled by inverse transform sampling in order of ids.

    Attributes:
        values: float64 ``[rows]``, in ``[0, 1)``.

    Raises:
        KernelArgumentError: the tensor has another dtype or shape.
    """

    values: Tensor

    def __post_init__(self) -> None:
        check_tensor("uniforms", "values", self.values, dtype=torch.float64, dims=1)

    def __len__(self) -> int:
        return len(self.values)


Chance: TypeAlias = Noise | Uniforms


def masked_sample(
    logits: Tensor, masks: MaskRows, shape: Shape, noise: Chance, *, workspace: Workspace | None = None
) -> Choice:
    """Sample an allowed token for each row; never one whose weight is zero.

    With ``Uniforms``, the token is the smallest id at which the cumulative sum of the truncated weights exceeds the
    uniform number times their sum.  The host chooses the same token, unless the number is within float32 rounding of a
    boundary.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= masks.size``; rows may be
            strided.  Not modified.
        masks: the mask of each row.
        shape: the temperature and the truncation of each row.
        noise: the seed and the offset of each row, or its uniform number.
        workspace: buffers to reuse, the result among them; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    workspace = workspace_for("masked_sample", logits, masks, workspace)
    values = noise.values if isinstance(noise, Uniforms) else noise.seeds
    for argument, held in (("shape", shape.temperature), ("noise", values)):
        if len(held) != len(logits) or held.device != logits.device:
            raise KernelArgumentError(
                "masked_sample",
                argument,
                f"must have {len(logits)} rows on {str(logits.device)!r}, not {len(held)} on {str(held.device)!r}",
            )
    choice = workspace.choice(len(logits), "masked_sample")
    if backend_for(logits.device) == "torch":
        kept = settle(logits, masks, choice)
        finish(choice, kept, _sampled(kept, shape, noise))
    elif len(logits):
        _launch(logits, masks, shape, noise, workspace)
    return choice


def _sampled(kept: Tensor, shape: Shape, noise: Chance) -> Tensor:
    """Return the column sampled in each row of allowed logits, float64 ``[rows, size]`` (reference implementation)."""
    best = kept.max(1, keepdim=True).values
    best = torch.where(best == -torch.inf, 0, best)
    temperature = shape.temperature.to(torch.float64)[:, None]
    is_greedy = temperature <= 0
    weights = ((kept - best) / torch.where(is_greedy, 1, temperature)).exp()
    first = (kept == best).to(torch.int8).argmax(1, keepdim=True)
    weights = torch.where(is_greedy, torch.zeros_like(weights).scatter(1, first, 1), weights)
    order = kept.sort(dim=1, descending=True, stable=True).indices
    weights = torch.zeros_like(weights).scatter(1, order, _truncated(weights.gather(1, order), shape))
    if isinstance(noise, Uniforms):
        return _inverse_cdf(weights, noise.values)
    return _race(weights, noise, _is_truncated(shape, kept.shape[1]))


def _is_truncated(shape: Shape, size: int) -> Tensor:
    """Whether each row is truncated by top-k, top-p or min-p, bool ``[rows]``."""
    return ((shape.top_k > 0) & (shape.top_k < size)) | (shape.top_p < 1) | (shape.min_p > 0)


def _truncated(weights: Tensor, shape: Shape) -> Tensor:
    """Return weights in descending order, ``[rows, size]``, with zeros for the truncated ones."""
    rank = torch.arange(weights.shape[1], device=weights.device)
    weights = weights.masked_fill((shape.top_k[:, None] > 0) & (rank >= shape.top_k[:, None]), 0)
    sums = weights.cumsum(1)
    before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
    top_p = shape.top_p.to(torch.float64)[:, None]
    weights = weights.masked_fill((top_p < 1) & (rank > 0) & (before >= top_p * sums[:, -1:]), 0)
    return weights.masked_fill((rank > 0) & (weights < shape.min_p.to(torch.float64)[:, None]), 0)


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    sums = weights.cumsum(1)
    index = torch.searchsorted(sums, uniforms[:, None] * sums[:, -1:], right=True)[:, 0]
    columns = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, columns, 0).max(1).values  # if the target was rounded up to the sum
    return torch.minimum(index, last)


def _race(weights: Tensor, noise: Noise, is_truncated: Tensor) -> Tensor:
    """Return the first token to arrive: in one race if the row is truncated, else in the chunk that arrives first."""
    rows, size = weights.shape
    columns = torch.arange(size, device=weights.device)
    chunks = torch.nn.functional.pad(weights, (0, -size % CHUNK)).view(rows, -1, CHUNK).sum(2)
    chunk = (chunks / _arrivals(noise, "chunk", chunks.shape[1])).argmax(1, keepdim=True)
    weights = weights.masked_fill(~is_truncated[:, None] & (columns // CHUNK != chunk), 0)
    return (weights / _arrivals(noise, "token", size)).argmax(1)


def _arrivals(noise: Noise, stream: str, count: int) -> Tensor:
    index = torch.arange(count, device=noise.seeds.device).expand(len(noise), count)
    high, low, _, _ = random_words(noise.seeds[:, None], noise.offsets[:, None], STREAMS[stream], index)
    return exponential(high, low).to(torch.float64)


def _launch(logits: Tensor, masks: MaskRows, shape: Shape, noise: Chance, workspace: Workspace) -> None:
    from structgen_kernels.choices.jit.masked_sample import masked_sample_kernel

    chunk_summary(logits, masks, shape.temperature, workspace=workspace)
    shift = _ZERO_BITS[logits.dtype]
    launch(
        masked_sample_kernel,
        (len(logits),),
        logits,
        logits.stride(0),
        masks.arguments(),
        masks.size,
        shape.temperature,
        shape.top_k,
        shape.top_p,
        shape.min_p,
        *((noise.values, None) if isinstance(noise, Uniforms) else (noise.seeds, noise.offsets)),
        *workspace.arguments(),
        workspace.survivors,
        workspace.candidate_columns,
        workspace.candidate_logits,
        *workspace.choice(len(logits), "masked_sample").arguments(),
        **workspace.constants(masks.size),
        CHUNK_STREAM=STREAMS["chunk"],
        TOKEN_STREAM=STREAMS["token"],
        SHIFT=shift,
        NONE=_MIN_KEY >> shift,
        REACH=_REACH,
        CANDIDATES=CANDIDATES,
        PIVOTS=_PIVOTS,
        num_warps=8,
        maxnreg=255,  # of 256 threads: above 128 a multiprocessor has one program in any case, and fewer spill
    )
