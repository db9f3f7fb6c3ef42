"""The probability of each value of the fields that have few values.

For models that write token by token and for canvases.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from structgen.decode.autoregressive.marginals import MarginalQuery, marginals
from structgen.engine import compile
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.regex import regex
from structgen.grammar.algebra import optional
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat, literal
from structgen.program.json_cursor import SCALAR_BYTES, string_end
from structgen.program.outcome import token_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structgen.decode import Generation, Result
    from structgen.decode.diffusion.posterior import Tail
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol.diffusion import DiffusionModel
    from structgen.program.answer import Answer
    from structgen.program.json_cursor import FieldEnd

__all__ = ["MAX_TEXTS", "canvas_marginals", "few_texts", "field_marginals", "values_of"]

MAX_TEXTS: Final = 100
"""The most texts that a field may have whose probabilities are computed."""
_MAX_PASSES: Final = 1_000
"""The most forward passes for one field."""
_MAX_TEXT_BYTES: Final = 4_096
"""The most bytes of such a text."""
_FIELDS_PER_BATCH: Final = 16


def field_marginals(
    generation: Generation, answer: Answer, ends: Sequence[FieldEnd], offsets: Sequence[int], *, max_tokens: int
) -> list[Mapping[Any, float] | None]:
    """Return for each field the probability of each of its values; None where it has too many, or is a container.

    ``generation`` is a finished output and stays as it is; ``offsets`` are the bytes at which its tokens begin, and the
    end; ``max_tokens`` is its budget.
    """
    found: list[Mapping[Any, float] | None] = []
    for at in range(0, len(ends), _FIELDS_PER_BATCH):
        queries = [_query(generation, answer, end, offsets, max_tokens) for end in ends[at : at + _FIELDS_PER_BATCH]]
        answerable = [query for query in queries if query is not None]
        try:
            answered = iter(marginals(answerable, max_passes=_MAX_PASSES))
        finally:
            for query in answerable:
                query.context.close()
        found += [None if query is None else next(answered) for query in queries]
    return found


def _query(
    generation: Generation, answer: Answer, end: FieldEnd, offsets: Sequence[int], max_tokens: int
) -> MarginalQuery | None:
    tokens, data = generation.tokens, generation.data
    first = next((at for at in range(len(tokens)) if offsets[at + 1] > end.start), len(tokens))
    matcher = generation.matcher.fork()
    matcher.rollback(len(tokens) - first)
    before = data[offsets[first] : end.start]
    place = matcher.fork()
    place.accept_bytes(before)
    texts = few_texts(place, is_json=answer.form == "json", most=MAX_TEXTS)
    values = None if texts is None else values_of(answer, texts)
    if values is None:
        return None
    chosen_at = first
    steps = generation.steps
    while chosen_at < len(tokens) and steps[chosen_at].forced:
        chosen_at += 1
    for token in tokens[first:chosen_at]:
        matcher.accept(token)
    context = generation.context.fork()
    context.truncate(len(context) - (len(tokens) - chosen_at))
    return MarginalQuery(
        context, matcher, max_tokens - chosen_at, data[offsets[first] : offsets[chosen_at]], before, values
    )


def values_of(answer: Answer, texts: Sequence[bytes]) -> dict[bytes, Any] | None:
    """Return the values by their texts; None where Python takes two of them for one, as ``1`` and ``True``."""
    made = {text: json.loads(text) if answer.form == "json" else _text_value(answer, text) for text in texts}
    kinds = {(type(value), value) for value in made.values()}
    return made if len(kinds) == len({value for _, value in kinds}) else None


def _text_value(answer: Answer, text: bytes) -> Any:
    """The value that a text spells; the text itself where a check refuses it, or where the value cannot be a key."""
    from pydantic import ValidationError

    shown = text.decode("utf-8", "replace")
    try:
        value = answer.value(shown)
        hash(value)
    except (ValidationError, TypeError):
        return shown
    return value


def few_texts(matcher: Matcher, *, is_json: bool, most: int) -> list[bytes] | None:
    """Return all texts that may follow the position of a matcher; None if there are more than ``most``.

    The matcher is at the first byte and stays there.  With ``is_json`` the texts are scalars within JSON, else all that
    is still to come.

    Complexity: O(``most`` times the bytes of the longest).
    """
    found: list[bytes] = []
    work: list[tuple[bytes, Matcher]] = [(b"", matcher)]
    while work:
        text, at = work.pop()
        live = at.live_bytes()
        if is_json and not text and (b"{"[0] in live or b"["[0] in live):
            return None
        if not is_json:
            ends = at.is_accepting
        elif text[:1] == b'"':
            # string_end scans from the start of the text, so only if the text ends with a quote
            ends = text.endswith(b'"') and string_end(text, 1) is not None
            live = b"" if ends else live
        else:
            ends = bool(text) and (at.is_accepting or not SCALAR_BYTES.issuperset(live))
            live = bytes(SCALAR_BYTES.intersection(live)) if text else live
        if ends:
            found.append(text)
        if len(found) + len(work) + len(live) > most or len(text) > _MAX_TEXT_BYTES:
            return None
        for byte in live:
            ahead = at.fork()
            ahead.accept_bytes(bytes([byte]))
            work.append((text + bytes([byte]), ahead))
    return found


_REST: Final = optional(regex(r"[^0-9.eE+\-]") + Repeat(ANY_CHAR, 0, None))
"""What may follow a value in JSON: nothing with which a number would go on."""


def canvas_marginals(  # noqa: PLR0913  the model, the answer and how it was written: no two of them travel together
    model: DiffusionModel,
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
    says, restricted to the language and to the text before the field, is a distribution of canvases; the probability of
    a value is the mass of the canvases that have it there, whatever tokens spell it and whatever follows.

    The prompt of ``model`` is what was said before, whatever text it is given.  ``temperature`` is that of the
    distribution of each slot, and ``tail`` says how slots after the output count.

    Complexity: a forward pass for each field, and a language for each of its values.
    """
    # Imported here, so that programs on other models do not pay for canvases.
    from structgen.decode.diffusion.canvas import canvas_language
    from structgen.decode.diffusion.forward_pass import denoise
    from structgen.decode.diffusion.mean_field import FREE, MeanField

    canvas = np.array(result.tokens if result.canvas is None else result.canvas.tokens, dtype=np.int32)
    offsets = token_offsets(result.tokens, result.vocabulary.tokens)
    denoiser = model.start(model.encode_prompt(""))
    found: list[Mapping[Any, float] | None] = []
    try:
        for end in ends:
            before = result.data[: end.start]
            place = constraint.matcher()
            place.accept_bytes(before)
            texts = few_texts(place, is_json=answer.form == "json", most=MAX_TEXTS)
            values = None if texts is None else values_of(answer, texts)
            if values is None:
                found.append(None)
                continue
            freed = canvas.copy()
            freed[max(np.searchsorted(offsets, end.start, side="right") - 1, 0) :] = FREE
            size = model.vocabulary.size
            (logits,) = denoise(denoiser, [freed], mask_token=model.mask_token, size=size)
            distribution = MeanField(freed, logits, temperature=temperature)
            masses: list[float] = []
            for text in values:
                try:
                    held = compile(_having(constraint.grammar, answer, before, text), constraint.vocabulary)
                except UnsatisfiableGrammar:
                    masses.append(-np.inf)
                    continue
                masses.append(canvas_language(held).posterior(distribution, tail=tail).log_z)
            weights = np.exp(np.array(masses) - max(masses))
            shares = (weights / weights.sum()).tolist()
            found.append(dict(zip(values.values(), shares, strict=True)))
    finally:
        denoiser.close()
    return found


def _having(grammar: Grammar, answer: Answer, before: bytes, text: bytes) -> Grammar:
    """The strings with ``text`` as the value that follows ``before``."""
    having: Grammar = literal((before + text).decode())
    return grammar & (having + _REST if answer.form == "json" else having)
