"""A token of each row drawn under its mask, after temperature, top-k, top-p and min-p, which may differ between rows.

One pass over the logits (``chunk_summary``) finds the largest allowed logit and the mass of each chunk of 128 columns.
One program a row then works on these numbers, 1,024 for 131,072 logits, and reads again only the chunks that matter:

- nothing truncated: a chunk is drawn by its mass, then a token of it by its weight.  Both are exponential races (Gumbel
  maxima), so the distribution is exact: the minimum of the arrivals of a chunk arrives at the rate of its mass.  That
  is 1,152 random numbers for 131,072 tokens; a race of all tokens would take 131,072, of 10 rounds of Philox each, some
  60 integer operations, where reading a bfloat16 logit leaves time for about 17.
- truncated: the kept tokens are the first ones in the order of falling logits, and of ids where logits are equal.  A
  bound on the last one follows from the chunks: of top-k the k-th largest maximum; of top-p that down to which
  maxima, or masses but for 127 tokens just below the bound, have the mass p; of min-p the largest plus
  ``T log min_p``.  The chunks above it hold the candidates, allowed tokens from the bound on.  Up to 2,048 are gathered
  once, in the order of ids; all that follows works on these: the exact last one is found by counting what lies above
  4 pivots at a time, until one key is left, and the kept tokens race.  Where there are more, the chunks themselves are
  searched in the same way, until the candidates that are left fit, or the last one is found.  Min-p alone needs no
  search and gathers nothing.  Of 1,024 chunks of Zipf-like logits whose probable ids are near each other (exponents 1
  to 2), about 50 survive top-k 50, with 660 to 760 candidates, and 1 to 90 top-p 0.9 at temperature 0.7, with 12 to
  1,340.
- temperature 0: the most probable token, as ``masked_argmax``.

Bytes a row of ``n`` logits of ``b`` bytes: ``b * n`` and ``n / 8`` of a dense mask are read once; ``n / 16`` and
``20 * ceil(n / 2048)`` of summary are written and read again; 20 are written as outcome.  Then nothing truncated: one
chunk, ``128 * b + 16``.  Truncated: 4 for each chunk above the bound are written, and ``4 + 128 * b + 16`` of it are
read once; 8 for each candidate are written, and read again in each step of the search, from the first-level cache.
The steps are, for top-k and for top-p, the logarithm to the base 4 of the distance of two keys, at most 16 of float32
and 8 of bfloat16, or fewer where one key is left before, and then 1 more.  Where candidates do not fit, each step reads
the chunks above the bound again.  The race is 1 more pass, or 2 with uniform numbers.

Truncation means what it does in ``structgen.decode.step.sampler``: temperature, then top-k, then top-p on what is left,
renormalised (the fewest most probable tokens that have at least ``p`` together), then min-p.

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
_MIN_KEY: Final = -0x7F800001  # that of minus infinity
_REACH: Final = 16
_PIVOTS: Final = 4


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """How the distribution of each row is shaped.

    Values are on the device and are not looked at before the kernel does.

    Attributes:
        temperature: float64 or float32 ``[rows]``, at least 0; 0 is the most probable token.
        top_k: int32 ``[rows]``; 0 and the size of the vocabulary or more are off.
        top_p: float64 or float32 ``[rows]``, above 0; 1 and more are off.
        min_p: float64 or float32 ``[rows]``, at most 1; 0 is off.

    Raises:
        KernelArgumentError: a tensor has another type or shape, or they are on different devices.
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
        """The same shape for ``rows`` rows."""

        def spread(value: float) -> Tensor:
            return torch.full((rows,), value, dtype=torch.float64, device=device)

        ks = torch.full((rows,), top_k, dtype=torch.int32, device=device)
        return cls(spread(temperature), ks, spread(top_p), spread(min_p))

    def __len__(self) -> int:
        return len(self.temperature)


@final
@dataclass(frozen=True, slots=True)
class Uniforms:
    """Uniform numbers in place of noise: tokens are chosen by the inverse distribution function in the order of ids.

    Attributes:
        values: float64 ``[rows]``, from 0 to below 1.

    Raises:
        KernelArgumentError: the tensor has another type or shape.
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
    """Draw an allowed token of each row; never one whose weight is zero.

    With ``Uniforms`` it is the smallest id at which the running sum of the shaped weights exceeds the number times
    their sum, as on the host, but for numbers within float32's rounding of a boundary.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= masks.size``; rows may lie apart,
            columns may not.  They stay as they are.
        masks: what each row may hold.
        shape: temperature and truncation of each row.
        noise: where the random numbers of each row come from, or the numbers.
        workspace: buffers, which the outcome is part of; without it they are allocated.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.
    """
    workspace = workspace_for("masked_sample", logits, masks, workspace)
    values = noise.values if isinstance(noise, Uniforms) else noise.seeds
    for argument, held in (("shape", shape.temperature), ("noise", values)):
        if len(held) != len(logits) or held.device != logits.device:
            raise KernelArgumentError(
                "masked_sample",
                argument,
                f"must be of {len(logits)} rows on {str(logits.device)!r}, not of {len(held)} on {str(held.device)!r}",
            )
    choice = workspace.choice(len(logits), "masked_sample")
    if backend_for(logits.device) == "torch":
        kept = settle(logits, masks, choice)
        finish(choice, kept, _drawn(kept, shape, noise))
    elif len(logits):
        _launch(logits, masks, shape, noise, workspace)
    return choice


def _drawn(kept: Tensor, shape: Shape, noise: Chance) -> Tensor:
    """The reference implementation.

    The column that is chosen in each row of allowed logits, float64 ``[rows, size]``.
    """
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
    """Whether anything but the temperature shapes a row, bool ``[rows]``."""
    return ((shape.top_k > 0) & (shape.top_k < size)) | (shape.top_p < 1) | (shape.min_p > 0)


def _truncated(weights: Tensor, shape: Shape) -> Tensor:
    """Weights in falling order, ``[rows, size]``, with zeros from where they are cut off."""
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
    last = torch.where(weights > 0, columns, 0).max(1).values  # where the target was rounded up to the sum
    return torch.minimum(index, last)


def _race(weights: Tensor, noise: Noise, is_truncated: Tensor) -> Tensor:
    """The token that arrives first: in one race where the row is truncated, else in its chunk, which arrives first."""
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
        maxnreg=168,  # the compiler might choose fewer for the sake of more programs, and spill
    )
