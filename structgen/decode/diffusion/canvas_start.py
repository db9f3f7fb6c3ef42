"""What is checked before a canvas is filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.decode.diffusion.canvas_length import canvas_length
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.start import check_vocabulary, constraint_of
from structgen.errors import BudgetError, GenerationError, ModelError
from structgen.models.diffusion.canvas import find_mask

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage
    from structgen.engine import Constraint, Vocabulary
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.models.diffusion.protocol import DiffusionModel

__all__ = ["canvas_constraint", "first_canvas", "mask_of"]


def mask_of(model: DiffusionModel) -> int:
    """Return the model's MASK.

    Raises:
        ModelError: it has none, or one that a slot may hold.
    """
    mask_token: object = model.mask_token
    if not isinstance(mask_token, int) or isinstance(mask_token, bool):
        raise ModelError(
            f"model {model.name!r}",
            "it has no MASK",
            evidence=f"its mask_token is {mask_token!r}",
            remedy="use a masked diffusion model, or say which token is MASK",
        )
    return find_mask(model.vocabulary, mask_token)


def canvas_constraint(grammar: Grammar | Constraint, model: DiffusionModel, limits: Limits | None) -> Constraint:
    """Return a constraint for the model's vocabulary; a grammar is compiled.

    Raises:
        TypeError: it is neither.
        GrammarError, LimitExceeded: the grammar does not compile.
        VocabularyError: it does not for these tokens, or the constraint belongs to another vocabulary.
    """
    constraint = constraint_of(grammar, model, limits)
    check_vocabulary(constraint.vocabulary, model)
    return constraint


def first_canvas(
    canvas: int | ArrayLike | None,
    language: CanvasLanguage,
    model: DiffusionModel,
    prompt_tokens: int,
    mask_token: int,
    block: int | None,
) -> Canvas:
    """Return the canvas to begin with, ``FREE`` in what is to be filled.

    Args:
        canvas: how many slots, or the canvas itself with ``FREE`` or MASK in free slots; None for a length that suits
            the language.
        language: whose members are to fit.
        model: whose context is to hold it.
        prompt_tokens: before the canvas.
        mask_token: the model's MASK.
        block: by default there are whole blocks.

    Raises:
        BudgetError: it has fewer slots than the shortest member takes.
        GenerationError: prompt and canvas exceed the model's context.
        ValueError: it is neither a number of slots nor a row of tokens, or ``block`` is below 1.
    """
    if block is not None and (not isinstance(block, int) or isinstance(block, bool) or block < 1):
        raise ValueError(f"block must be an integer of at least 1, or None; found {block!r}")
    room = None if model.max_context is None else model.max_context - prompt_tokens
    if canvas is None:
        slots = canvas_length(language)
        if block is not None:
            slots = -(-slots // block) * block
        found = np.full(slots if room is None else max(min(slots, room), language.shortest, 1), FREE, dtype=np.int32)
    elif isinstance(canvas, (int, np.integer)) and not isinstance(canvas, bool):
        if canvas < 1:
            raise ValueError(f"canvas must have at least 1 slot; found {canvas!r}")
        found = np.full(int(canvas), FREE, dtype=np.int32)
    else:
        found = _given(canvas, language.vocabulary, mask_token)
    if len(found) < language.shortest:
        raise BudgetError(budget=len(found), needed=language.shortest, name="canvas")
    if room is not None and len(found) > room:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and canvas exceed its context by {len(found) - room} tokens",
            evidence=f"the prompt has {prompt_tokens}, the canvas {len(found)} slots, the context holds "
            f"{model.max_context}",
            remedy=f"allow at most canvas={room}, or shorten the prompt"
            if room >= max(language.shortest, 1)
            else "shorten the prompt",
        )
    return found


def _given(canvas: ArrayLike, vocabulary: Vocabulary, mask_token: int) -> Canvas:
    """A canvas that the caller wrote, with MASK and ``FREE`` alike free.

    Raises:
        ValueError: it is no row of tokens.
    """
    given = np.asarray(canvas)
    if given.ndim != 1 or not len(given) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(
            f"canvas must be a number of slots or a row of token ids; found {given.dtype} of shape {given.shape}"
        )
    outside = (given != FREE) & ((given < 0) | (given >= vocabulary.size))
    if outside.any():
        slot = int(outside.argmax())
        raise ValueError(
            f"canvas: slot {slot} holds {int(given[slot])}, which is no token; ids are 0 to {vocabulary.size - 1}, and "
            f"{FREE} is free"
        )
    return np.where(given == mask_token, FREE, given).astype(np.int32)
