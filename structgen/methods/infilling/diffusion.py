"""Holes filled by a diffusion model: a canvas whose fixed slots hold the texts between the holes.

A canvas fills every slot of a hole, so the length of each filling is chosen first, among the lengths with which the
whole canvas is completable. A hole at the end of the text needs no choice: its unused slots hold EOS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.forward_pass import denoise
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.grammar.limits import counted
from structgen.methods.infilling.frame import FilledHole
from structgen.methods.infilling.open_canvas import OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.decode.diffusion.posterior import CanvasLanguage, CanvasSampler
    from structgen.engine.constraint import Constraint
    from structgen.engine.vocabulary import Vocabulary
    from structgen.methods.infilling.frame import Frame
    from structgen.methods.infilling.open_canvas import OpenLanguage
    from structgen.models.protocol import Prompt
    from structgen.models.protocol.diffusion import Denoiser, DiffusionModel

__all__ = ["Lengths", "fill_diffusion"]

Lengths: TypeAlias = Literal["rate", "mass", "longest"]
"""How the length of a filling is chosen among the possible lengths.

``"rate"``: the largest ``log Z`` per free slot, where ``Z`` is the mass of valid strings under the mean-field
distribution of the canvas with that length; an empty filling only if there is no other. ``"mass"``: the largest ``Z``,
or with a sampler that is not deterministic, a length sampled in proportion to it: the posterior of the length under a
uniform prior. It prefers short fillings, since each slot adds uncertainty. ``"longest"``: as many slots as possible,
without a forward pass.
"""


class _InfillPass(NamedTuple):
    """The inputs for rating lengths."""

    denoiser: Denoiser
    mask_token: int
    language: CanvasLanguage
    sampler: CanvasSampler
    temperature: float


def fill_diffusion(  # noqa: PLR0913  of infill
    model: DiffusionModel,
    prompt: Prompt,
    frame: Frame,
    constraint: Constraint,
    language: OpenLanguage,
    *,
    sampler: CanvasSampler,
    policy: CommitPolicy | None,
    temperature: float,
    lengths: Lengths,
    seed: int,
    chat: bool,
    stream: Callable[[Snapshot], object] | None,
) -> tuple[list[FilledHole], int]:
    """Fill the holes of a completable frame.

    Returns:
        The fillings, and the number of forward passes.

    Raises:
        GenerationError: the model fails.
    """
    canvases = canvas_language(constraint, ambiguity="counted")
    denoiser = model.start(model.encode_prompt(prompt, chat=chat))
    infill_pass = _InfillPass(denoiser, model.mask_token, canvases, sampler, temperature)
    try:
        with counted(constraint.limits, limit="canvas_steps"):
            chosen = _choose_lengths(infill_pass, frame, language, lengths, np.random.Generator(np.random.PCG64(seed)))
    finally:
        denoiser.close()
    canvas = _canvas(frame, [[FREE] * length for length in chosen])
    forwards = denoiser.forwards
    if (canvas == FREE).any():
        result = fill_canvas(
            model,
            prompt,
            constraint,
            canvas=canvas,
            policy=policy,
            sampler=sampler,
            temperature=temperature,
            seed=seed,
            stream=stream,
            chat=chat,
        )
        forwards += result.stats.forwards
        if result.canvas is None:
            raise RuntimeError("the result of a canvas has no canvas")
        canvas = np.array(result.canvas.tokens, dtype=np.int32)
    return _fillings(frame, chosen, canvas, constraint.vocabulary), forwards


def _choose_lengths(
    infill_pass: _InfillPass, frame: Frame, language: OpenLanguage, lengths: Lengths, generator: np.random.Generator
) -> list[int]:
    """Choose the lengths of the holes from left to right; holes to the right are as long as possible meanwhile."""
    chosen: list[int] = []
    for number, limit in enumerate(frame.holes):
        if number == len(frame.holes) - 1 and not frame.texts[-1]:
            chosen.append(limit)  # EOS fills unused slots
            break
        lengths_of = _possible(frame, language, chosen)
        longest = next(lengths_of)
        possible = [longest] if lengths == "longest" else [longest, *lengths_of]
        if len(possible) == 1:
            chosen.append(longest)
            continue
        rated = [_log_z(infill_pass, frame, language, [*chosen, length]) for length in possible]
        chosen.append(possible[_best_length(rated, lengths, infill_pass.sampler, generator)])
    return chosen


def _possible(frame: Frame, language: OpenLanguage, chosen: Sequence[int]) -> Iterator[int]:
    """The possible lengths of the next hole, the longest first; there is at least one."""
    for length in range(frame.holes[len(chosen)], -1, -1):
        if language.completable(_cut_canvas(frame, [*chosen, length])):
            yield length


def _best_length(
    rated: Sequence[tuple[float, int]], lengths: Lengths, sampler: CanvasSampler, generator: np.random.Generator
) -> int:
    """The index of the chosen length, from ``log Z`` and the number of free slots of each."""
    log_z = np.array([log_z for log_z, _ in rated])
    if lengths == "rate":
        slots = np.array([slots for _, slots in rated])
        log_z = np.where(slots > 0, log_z / np.maximum(slots, 1), -np.inf)
    elif not sampler.deterministic and np.isfinite(log_z).any():
        weights = np.exp(log_z - log_z.max())
        return min(
            int(np.searchsorted(np.cumsum(weights), generator.random() * weights.sum(), side="right")), len(rated) - 1
        )
    return int(log_z.argmax())


def _log_z(infill_pass: _InfillPass, frame: Frame, language: OpenLanguage, chosen: list[int]) -> tuple[float, int]:
    """``log Z`` and free slots of the canvas with these lengths, the other holes as long as possible."""
    lengths = list(chosen)
    while len(lengths) < len(frame.holes):
        if len(lengths) == len(frame.holes) - 1 and not frame.texts[-1]:
            lengths.append(frame.holes[-1])
            break
        lengths.append(next(_possible(frame, language, lengths)))
    canvas = _canvas(frame, [[FREE] * length for length in lengths])
    if not (canvas == FREE).any():
        return 0.0, 0
    size = infill_pass.language.vocabulary.size
    (logits,) = denoise(infill_pass.denoiser, [canvas], mask_token=infill_pass.mask_token, size=size)
    distribution = MeanField(canvas, logits, temperature=infill_pass.temperature)
    posterior = infill_pass.language.posterior(distribution, tail=infill_pass.sampler.tail)
    return posterior.log_z, int((canvas == FREE).sum())


def _cut_canvas(frame: Frame, lengths: Sequence[int]) -> NDArray[np.int32]:
    """The canvas whose first holes have these lengths; the slots of the others are open."""
    free = [[FREE] * length for length in lengths]
    return _canvas(frame, [*free, *([OPEN] * limit for limit in frame.holes[len(lengths) :])])


def _canvas(frame: Frame, slots: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """The canvas whose holes have these slots."""
    row = list(frame.texts[0])
    for held, text in zip(slots, frame.texts[1:], strict=True):
        row += [*held, *text]
    return np.array(row, dtype=np.int32)


def _fillings(
    frame: Frame, lengths: Sequence[int], canvas: NDArray[np.int32], vocabulary: Vocabulary
) -> list[FilledHole]:
    """The fillings of a filled canvas."""
    fillings: list[FilledHole] = []
    at = 0
    ends = set(vocabulary.eos)
    for text, length in zip(frame.texts, lengths, strict=False):
        at += len(text)
        tokens = tuple(token for token in canvas[at : at + length].tolist() if token not in ends)
        at += length
        fillings.append(FilledHole(vocabulary.decode(tokens), tokens))
    return fillings
