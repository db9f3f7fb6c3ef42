"""Fill canvases of a regular language on the device: the most probable completion, or an exact sample.

A step is a sequence of launches without synchronization:

1. ``class_scores``: one pass over all logits for the scores of token classes in each slot.
2. ``label_scores``: the weight of each edge label, from its classes.  In a fixed slot, the labels of the fixed token
   have the log weight 0 and all others are impossible.  If the tail is free, its label has the log weight 0.
3. ``chain_backward``: the weight of the runs from each state to acceptance.
4. ``chain_best`` or ``chain_draw``: the edge of every slot.
5. A class of the label of each edge; then ``class_best`` or ``class_draw``: a token of the class.

Steps 2 to 4 do not depend on the size of the vocabulary; only steps 3 and 4 go slot by slot.

A completion may be shorter than the canvas.  The automaton has an EOS edge from every accepting state to one more
state, which has an edge to itself for the *tail*.  The tail is free, or scored like the other slots.

Bytes, for 8 canvases of 128 slots, 131,072 bfloat16 logits, 151 states and 170 labels: step 1 reads 268 MB of logits,
which takes 80 microseconds at 3.35 TB/s; the other steps read and write less than 10 MB.  Steps 3 and 4 wait in each of
the 128 slots for a few dependent loads.  This latency is estimated at half a microsecond per slot.

Sources: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061), with runs to
acceptance instead of runs to a live state; M. Dang and S. Ermon (2026, arXiv 2607.07026) for samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

import torch

from structgen_kernels.arguments import check_logits, check_tensor
from structgen_kernels.canvases.canvas_tables import CanvasTables
from structgen_kernels.canvases.chain_messages import chain_backward
from structgen_kernels.canvases.chain_runs import ChainRuns, chain_best, chain_draw
from structgen_kernels.canvases.class_choice import class_best, class_draw
from structgen_kernels.canvases.class_scores import LOWEST, ClassScores, class_scores
from structgen_kernels.canvases.label_scores import label_scores
from structgen_kernels.choices.choice import CHOSEN, EMPTY, NON_FINITE
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, exponential, random_words

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.philox import Noise

__all__ = ["DingoWorkspace", "Filled", "dingo"]

_BLOCK: Final = 128


@final
@dataclass(frozen=True, slots=True)
class Filled:
    """The filled canvases.  If the status is not ``CHOSEN``, tokens are -1 and the other numbers minus infinity.

    Attributes:
        tokens: int32 ``[batch, slots]``.
        log_prob: float64 ``[batch]``: log-probability of the completion under the mean-field distribution; fixed slots
            and a free tail have probability 1.
        totals: float64 ``[batch]``: for a sample, log of the mass of all runs; for the best completion, ``log_prob``.
        status: int32 ``[batch]``: ``CHOSEN``; ``EMPTY`` if no completion is in the language; ``NON_FINITE`` if there is
            no completion and a free slot has NaN or plus infinity among its logits.
    """

    tokens: Tensor
    log_prob: Tensor
    totals: Tensor
    status: Tensor

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise if a canvas was not filled.  Copies ``status`` to the host, which synchronizes.

        Args:
            names: names of the canvases, for messages.

        Raises:
            NonFiniteLogitsError: canvases have NaN or plus infinity among their logits.
            EmptyRowError: canvases have no completion.
        """
        found: list[int] = self.status.tolist()
        broken = [row for row, status in enumerate(found) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError("dingo", broken, names)
        empty = [row for row, status in enumerate(found) if status != CHOSEN]
        if empty:
            raise EmptyRowError("dingo", empty, names)


@final
class DingoWorkspace:
    """All buffers of a step over ``batch`` canvases of ``slots`` slots.  Only one step at a time may use them.

    Bytes: ``20 * classes + 8 * segments + 4 * labels + 8 * states + 40`` per slot, and about 20 per canvas.

    Args:
        tables: the tables of the language.
        batch: the number of canvases.
        slots: the number of slots per canvas.

    Attributes:
        scores: the scores of the classes in all slots.
        weights: float32 ``[batch, slots, labels]``, the weights of the labels.
        messages: float64 ``[batch, slots + 1, states]``, the backward messages.
        runs: the chosen edges.
        rows: int32 ``[batch * slots]``, the row indices of all slots.
        classes: int32 ``[batch * slots]``, the class of the token of each slot; -1 if none is chosen.
        filled: the result of a step.
    """

    def __init__(self, tables: CanvasTables, batch: int, slots: int) -> None:
        self.batch, self.slots = batch, slots
        rows, place = batch * slots, tables.device
        self.scores = ClassScores.empty(tables.layout, rows)
        self.weights = torch.empty((batch, slots, tables.edges.labels), device=place)
        self.messages = torch.empty((batch, slots + 1, tables.edges.states), dtype=torch.float64, device=place)
        self.runs = ChainRuns.empty(batch, slots, place)
        self.rows = torch.arange(rows, dtype=torch.int32, device=place)
        self.classes = torch.empty(rows, dtype=torch.int32, device=place)
        self.filled = Filled(
            torch.empty((batch, slots), dtype=torch.int32, device=place),
            torch.empty(batch, dtype=torch.float64, device=place),
            self.runs.totals,
            torch.empty(batch, dtype=torch.int32, device=place),
        )
        # Views with one row per slot.
        self.weights_of_rows = self.weights.view(rows, tables.edges.labels)
        self.tokens_of_rows = self.filled.tokens.view(rows)


def dingo(  # noqa: PLR0913  three tensors, and settings by name
    logits: Tensor,
    canvas: Tensor,
    tables: CanvasTables,
    *,
    tail: Literal["free", "scored"] = "free",
    scale: float | Tensor = 1.0,
    noise: Noise | None = None,
    workspace: DingoWorkspace | None = None,
) -> Filled:
    """Fill the free slots of canvases with the most probable completion, or with a sample.

    Args:
        logits: float32, float16 or bfloat16 ``[batch * slots, columns]``, canvas by canvas, as for ``class_scores``;
            those of fixed slots are ignored.
        canvas: int32 ``[batch, slots]``, contiguous: token ids, -1 for free slots.
        tables: the tables of the language.
        tail: ``"free"``: the slots after EOS have probability 1 and are filled with ``tables.filler``.  ``"scored"``:
            they are scored like the other slots.
        scale: the factor of the logits, 1 / temperature; float32 ``[batch * slots]`` for a factor per slot.
        noise: noise for ``batch * slots`` rows, for a sample; None returns the best completion.  A completion is
            sampled in proportion to its probability times the number of its runs.
        workspace: the buffers for this language, batch and number of slots; None allocates them.

    Returns:
        The canvases, in buffers of the workspace, which the next step overwrites.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape, value or device.

    Precision: if the log-probabilities of completions differ by less than 1e-5 per slot, any of them may be returned as
        the best.
    Complexity: O(slots x (columns + edges)) per canvas; only the edges are processed slot by slot.
    """
    edges = tables.edges
    check_tensor("dingo", "canvas", canvas, dtype=torch.int32, dims=2, device=tables.device)
    check_logits("dingo", logits, size=tables.layout.size)
    batch, slots = canvas.shape
    rows = batch * slots
    if len(logits) != rows or not canvas.is_contiguous():
        raise KernelArgumentError("dingo", "canvas", f"must be contiguous, with a slot for each of {len(logits)} rows")
    if tail not in ("free", "scored"):
        raise KernelArgumentError("dingo", "tail", f"must be 'free' or 'scored', not {tail!r}")
    if noise is not None:
        check_tensor("dingo", "noise", noise.seeds, dtype=torch.int64, shape=(rows,), device=tables.device)
    work = DingoWorkspace(tables, batch, slots) if workspace is None else workspace
    if (work.batch, work.slots, work.messages.shape[2]) != (batch, slots, edges.states):
        wanted = f"{batch} canvases of {slots} slots and {edges.states} states"
        raise KernelArgumentError("dingo", "workspace", f"is not for {wanted}")
    is_triton = backend_for(tables.device) == "triton"
    class_scores(logits, tables.layout, scale=scale, out=work.scores)
    of_classes = work.scores.log_maxima if noise is None else work.scores.log_sums
    label_scores(of_classes, tables.labels, is_max=noise is None, out=work.weights_of_rows)
    (_settle_by_triton if is_triton else _settle)(work, canvas, tables, is_tail_free=tail == "free")
    chain_backward(work.weights, edges, is_max=noise is None, out=work.messages)
    if noise is None:
        chain_best(work.weights, edges, work.messages, out=work.runs)
    else:
        chain_draw(work.weights, edges, work.messages, noise, out=work.runs)
    free_tail = edges.labels - 1 if tail == "free" else -1
    (_classes_by_triton if is_triton else _classes)(work, canvas, tables, free_tail, noise)
    tokens = work.tokens_of_rows
    if noise is None:
        class_best(logits, tables.layout, work.scores, work.rows, work.classes, out=tokens)
    else:
        class_draw(logits, tables.layout, work.scores, work.rows, work.classes, noise, out=tokens)
    (_fill_by_triton if is_triton else _fill)(logits, work, canvas, tables.filler, is_draw=noise is not None)
    return work.filled


def _settle(work: DingoWorkspace, canvas: Tensor, tables: CanvasTables, *, is_tail_free: bool) -> None:
    weights, canvas = work.weights_of_rows, canvas.view(-1)
    if is_tail_free:
        weights[:, -1:] = 0.0
    known = (canvas >= 0) & (canvas < tables.layout.size)
    of = tables.layout.class_of[torch.where(known, canvas, 0).long()].long()
    fixed = torch.where(known[:, None] & tables.holds()[of], 0.0, -torch.inf)
    weights.copy_(torch.where(canvas[:, None] != -1, fixed, weights))


def _settle_by_triton(work: DingoWorkspace, canvas: Tensor, tables: CanvasTables, *, is_tail_free: bool) -> None:
    if not canvas.numel():
        return
    from structgen_kernels.canvases.jit.dingo import settle_labels_kernel

    launch(
        settle_labels_kernel,
        (canvas.numel(),),
        work.weights,
        tables.edges.labels,
        canvas,
        tables.layout.class_of,
        tables.layout.size,
        tables.class_begin,
        tables.class_label,
        IS_TAIL_FREE=is_tail_free,
        BLOCK=_BLOCK,
    )


def _classes(work: DingoWorkspace, canvas: Tensor, tables: CanvasTables, free_tail: int, noise: Noise | None) -> None:
    """The reference implementation: scores the classes of each chosen label in a table padded to the largest label."""
    label, labels, scores, canvas = work.runs.labels.view(-1), tables.labels, work.scores, canvas.view(-1)
    is_asked = (canvas == -1) & (label >= 0) & (label != free_tail)
    begin = labels.begin.long()
    first = begin[torch.where(is_asked, label, 0).long()]
    counts = torch.where(is_asked, begin.diff()[torch.where(is_asked, label, 0).long()], 0)
    columns = torch.arange(max(1, int(begin.diff().max())), device=canvas.device)
    is_there = columns < counts[:, None]
    padded = torch.cat([labels.held, labels.held.new_zeros(1)]).long()
    of = padded[torch.where(is_there, first[:, None] + columns, len(labels.held))]
    if noise is None:
        logit = scores.maxima.gather(1, of).to(torch.float64)
        scaled = (logit - scores.largest[:, None].to(torch.float64)) * scores.scales[:, None].to(torch.float64)
        keys = torch.where(logit > -torch.inf, scaled.clamp(min=LOWEST), -torch.inf)
    else:
        # Index 0 of the stream is for the token of the class.
        place = (columns + 1).expand(of.shape)
        words = random_words(noise.seeds[:, None], noise.offsets[:, None], STREAMS["class_token"], place)
        keys = scores.log_sums.gather(1, of).to(torch.float64) - exponential(*words[:2]).log().to(torch.float64)
    best = keys.masked_fill_(~is_there, -torch.inf).amax(1)
    at = (keys == best[:, None]).to(torch.int8).argmax(1)  # the first of equal keys
    chosen = of.gather(1, at[:, None])[:, 0]
    work.classes.copy_(torch.where(best > -torch.inf, chosen, -1))


def _classes_by_triton(
    work: DingoWorkspace, canvas: Tensor, tables: CanvasTables, free_tail: int, noise: Noise | None
) -> None:
    if not canvas.numel():
        return
    from structgen_kernels.canvases.jit.dingo import label_classes_kernel

    launch(
        label_classes_kernel,
        (canvas.numel(),),
        canvas,
        work.runs.labels,
        tables.labels.begin,
        tables.labels.held,
        free_tail,
        work.scores.maxima,
        work.scores.log_sums,
        work.scores.largest,
        work.scores.scales,
        tables.layout.classes,
        None if noise is None else noise.seeds,
        None if noise is None else noise.offsets,
        work.classes,
        IS_DRAW=noise is not None,
        LOWEST=LOWEST,
        STREAM=STREAMS["class_token"],
        BLOCK=_BLOCK,
    )


def _fill(logits: Tensor, work: DingoWorkspace, canvas: Tensor, filler: int, *, is_draw: bool) -> None:
    filled, scores = work.filled, work.scores
    totals, of = work.runs.totals, work.classes.view(canvas.shape)
    is_filled = totals > -torch.inf
    if is_draw:
        token = filled.tokens.view(-1).clamp(min=0).long()
        logit = logits.gather(1, token[:, None])[:, 0].to(torch.float64) if len(token) else totals[:0]
        scaled = (logit - scores.largest.to(torch.float64)) * scores.scales.to(torch.float64)
        each = (scaled.clamp(min=LOWEST) - scores.log_norms).view(canvas.shape)
        log_prob = torch.where(is_filled, torch.where(of >= 0, each, 0.0).sum(1), -torch.inf)
        filled.log_prob.copy_(log_prob)
    else:
        filled.log_prob.copy_(totals)
    written = torch.where(canvas != -1, canvas, torch.where(of >= 0, filled.tokens, filler))
    filled.tokens.copy_(torch.where(is_filled[:, None], written, -1))
    broken = ((scores.status.view(canvas.shape) == NON_FINITE) & (canvas == -1)).any(1)
    filled.status.copy_(torch.where(is_filled, CHOSEN, torch.where(broken, NON_FINITE, EMPTY)))


def _fill_by_triton(logits: Tensor, work: DingoWorkspace, canvas: Tensor, filler: int, *, is_draw: bool) -> None:
    if not len(canvas):
        return
    from structgen_kernels.canvases.jit.dingo import fill_canvas_kernel

    launch(
        fill_canvas_kernel,
        (len(canvas),),
        canvas,
        work.classes,
        work.filled.tokens,
        logits,
        logits.stride(0),
        work.scores.largest,
        work.scores.scales,
        work.scores.log_norms,
        work.scores.status,
        work.runs.totals,
        work.filled.log_prob,
        work.filled.status,
        canvas.shape[1],
        filler,
        IS_DRAW=is_draw,
        LOWEST=LOWEST,
        CHOSEN=CHOSEN,
        EMPTY=EMPTY,
        NON_FINITE=NON_FINITE,
        BLOCK=_BLOCK,
    )
