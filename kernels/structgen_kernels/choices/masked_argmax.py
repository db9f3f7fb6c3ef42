"""The most probable allowed token of each row, with its log-probability and the probability of all allowed tokens.

One pass over the logits (``chunk_summary``); then one program per row finds the best chunk among the maxima and reads
that chunk again.  Ties go to the lowest token id.

Bytes per row of ``n`` logits of ``b`` bytes: ``b * n`` of logits and ``n / 8`` of a dense mask are read; ``n / 32`` of
maxima and ``20 * ceil(n / 4096)`` are written and read again; one chunk, ``128 * b``, is read twice; the result is 20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE, Choice
from structgen_kernels.choices.chunk_summary import chunk_summary
from structgen_kernels.choices.step_workspace import Workspace, workspace_for
from structgen_kernels.dispatch import backend_for
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["masked_argmax"]


def masked_argmax(logits: Tensor, masks: MaskRows, *, workspace: Workspace | None = None) -> Choice:
    """Return the allowed token with the largest logit in each row; ties go to the lowest token id.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= masks.size``; rows may be
            strided.  Not modified.
        masks: the mask of each row.
        workspace: buffers to reuse, the result among them; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    workspace = workspace_for("masked_argmax", logits, masks, workspace)
    choice = workspace.choice(len(logits), "masked_argmax")
    if backend_for(logits.device) == "torch":
        kept = settle(logits, masks, choice)
        is_best = kept == kept.max(1, keepdim=True).values
        finish(choice, kept, is_best.to(torch.int8).argmax(1))  # the first of equal logits
    elif len(logits):
        from structgen_kernels.choices.jit.masked_argmax import masked_argmax_kernel

        chunk_summary(logits, masks, workspace=workspace)
        launch(
            masked_argmax_kernel,
            (len(logits),),
            logits,
            logits.stride(0),
            masks.arguments(),
            masks.size,
            *workspace.arguments(),
            *choice.arguments(),
            **workspace.constants(masks.size),
        )
    return choice


def settle(logits: Tensor, masks: MaskRows, choice: Choice) -> Tensor:
    """Write ``status``, ``log_z`` and ``log_mass`` (reference implementation).

    Returns:
        The allowed logits, float64 ``[rows, size]``, -inf for excluded tokens and in rows with NaN or plus infinity.
    """
    values = logits[:, : masks.size].to(torch.float64)
    broken = (values.isnan() | (values == torch.inf)).any(1, keepdim=True)
    values = values.masked_fill(broken, -torch.inf)
    allowed = masks.allowed()
    kept = values.masked_fill(~allowed, -torch.inf)
    mass, kept_mass = values.logsumexp(1), kept.logsumexp(1)
    status = torch.full_like(mass, CHOSEN, dtype=torch.int32)
    status.masked_fill_(kept_mass == -torch.inf, MASSLESS)
    status.masked_fill_(~allowed.any(1), EMPTY)
    status.masked_fill_(broken[:, 0], NON_FINITE)
    choice.status.copy_(status)
    choice.log_mass.copy_(mass)
    choice.log_z.copy_(torch.where(status == CHOSEN, kept_mass - mass, -torch.inf).clamp(max=0))
    return kept


def finish(choice: Choice, kept: Tensor, tokens: Tensor) -> None:
    """Write ``tokens``, int64 ``[rows]``, and their log-probabilities (reference implementation)."""
    is_chosen = choice.status == CHOSEN
    tokens = torch.where(is_chosen, tokens, 0)
    log_p = kept.gather(1, tokens[:, None])[:, 0] - kept.logsumexp(1)
    choice.tokens.copy_(torch.where(is_chosen, tokens, -1))
    choice.log_p.copy_(torch.where(is_chosen, log_p, -torch.inf))
