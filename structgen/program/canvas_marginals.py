"""The probabilities of all values of the fields that have few, where a canvas was filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from structgen.engine import compile
from structgen.errors import UnsatisfiableGrammar
from structgen.grammar.algebra import optional
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat, literal
from structgen.grammar.regex import regex
from structgen.program.marginals import MOST_TEXTS, few_texts, values_of
from structgen.program.scores import token_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structgen.decode import Result
    from structgen.decode.diffusion.posterior import Tail
    from structgen.engine import Constraint
    from structgen.models.diffusion.protocol import DiffusionModel
    from structgen.program.answer import Answer
    from structgen.program.fields import FieldEnd

__all__ = ["canvas_marginals"]

_REST: Final = optional(regex(r"[^0-9.eE+\-]") + Repeat(ANY_CHAR, 0, None))
"""What may follow a value in JSON: nothing with which a number would go on."""


def canvas_marginals(
    model: DiffusionModel,
    prompt_ids: Sequence[int],
    answer: Answer,
    constraint: Constraint,
    result: Result,
    ends: Sequence[FieldEnd],
    *,
    temperature: float,
    tail: Tail,
) -> list[Mapping[Any, float] | None]:
    """Return for each field the probability of each of its values; None where it has too many, or is a container.

    The slots from the one in which the field begins are freed, and the model is asked once about this canvas.  What it
    says, restricted to the language and to the text before the field, is a law of canvases; the probability of a value
    is the mass of the canvases that have it there, whatever tokens spell it and whatever stands behind.

    Args:
        model: the model.
        prompt_ids: what was said before.
        answer: what was asked for.
        constraint: its grammar.
        result: the answer.
        ends: its fields.
        temperature: of the law of each slot.
        tail: how slots after the member count.

    Complexity: a forward pass for each field, and a language for each of its values.
    """
    # Imported here, so that programs on other models do not pay for canvases.
    from structgen.decode.diffusion.denoising import denoise
    from structgen.decode.diffusion.language import canvas_language
    from structgen.decode.diffusion.mean_field import FREE, MeanField

    canvas = np.array(result.tokens if result.canvas is None else result.canvas.tokens, dtype=np.int32)
    offsets = token_offsets(result.tokens, result.vocabulary.tokens)
    denoiser = model.start(prompt_ids)
    found: list[Mapping[Any, float] | None] = []
    try:
        for end in ends:
            before = result.data[: end.start]
            place = constraint.matcher()
            place.accept_bytes(before)
            texts = few_texts(place, is_json=answer.form == "json", most=MOST_TEXTS)
            values = None if texts is None else values_of(answer, texts)
            if values is None:
                found.append(None)
                continue
            freed = canvas.copy()
            freed[max(np.searchsorted(offsets, end.start, side="right") - 1, 0) :] = FREE
            size = model.vocabulary.size
            (logits,) = denoise(denoiser, [freed], mask_token=model.mask_token, size=size)
            law = MeanField(freed, logits, temperature=temperature)
            masses: list[float] = []
            for text in values:
                try:
                    held = compile(_having(constraint.grammar, answer, before, text), constraint.vocabulary)
                except UnsatisfiableGrammar:
                    masses.append(-np.inf)
                    continue
                masses.append(canvas_language(held).posterior(law, tail=tail).log_z)
            weights = np.exp(np.array(masses) - max(masses))
            shares = (weights / weights.sum()).tolist()
            found.append(dict(zip(values.values(), shares, strict=True)))
    finally:
        denoiser.close()
    return found


def _having(grammar: Grammar, answer: Answer, before: bytes, text: bytes) -> Grammar:
    """The members with ``text`` as the value that follows ``before``."""
    having: Grammar = literal((before + text).decode())
    return grammar & (having + _REST if answer.form == "json" else having)
