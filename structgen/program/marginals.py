"""The probabilities of all values of the fields that have few."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from structgen.decode.marginals import Question, marginals
from structgen.program.fields import SCALAR_BYTES, string_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from structgen.decode import Generation
    from structgen.engine import Matcher
    from structgen.program.answer import Answer
    from structgen.program.fields import FieldEnd

__all__ = ["MOST_TEXTS", "few_texts", "field_marginals", "values_of"]

MOST_TEXTS: Final = 100
"""The most texts that a field may have whose probabilities are computed."""
_MOST_PASSES: Final = 1_000
"""The most forward passes for one field."""
_LONGEST: Final = 4_096
"""The most bytes of such a text."""
_TOGETHER: Final = 16


def field_marginals(
    generation: Generation, answer: Answer, ends: Sequence[FieldEnd], offsets: Sequence[int], *, max_tokens: int
) -> list[Mapping[Any, float] | None]:
    """Return for each field the probability of each of its values; None where it has too many, or is a container.

    Args:
        generation: a finished output; left as it is.
        answer: what was asked for.
        ends: its fields.
        offsets: the byte at which each token begins, and the end.
        max_tokens: the budget of the output.
    """
    found: list[Mapping[Any, float] | None] = []
    for at in range(0, len(ends), _TOGETHER):
        questions = [_question(generation, answer, end, offsets, max_tokens) for end in ends[at : at + _TOGETHER]]
        asked = [question for question in questions if question is not None]
        try:
            answered = iter(marginals(asked, most=_MOST_PASSES))
        finally:
            for question in asked:
                question.context.close()
        found += [None if question is None else next(answered) for question in questions]
    return found


def _question(
    generation: Generation, answer: Answer, end: FieldEnd, offsets: Sequence[int], max_tokens: int
) -> Question | None:
    tokens, data = generation.tokens, generation.data
    first = next((at for at in range(len(tokens)) if offsets[at + 1] > end.start), len(tokens))
    matcher = generation.matcher.fork()
    matcher.rollback(len(tokens) - first)
    before = data[offsets[first] : end.start]
    place = matcher.fork()
    place.accept_bytes(before)
    texts = few_texts(place, is_json=answer.form == "json", most=MOST_TEXTS)
    values = None if texts is None else values_of(answer, texts)
    if values is None:
        return None
    drawn = first
    steps = generation.steps
    while drawn < len(tokens) and steps[drawn].forced:
        drawn += 1
    for token in tokens[first:drawn]:
        matcher.accept(token)
    context = generation.context.fork()
    context.truncate(len(context) - (len(tokens) - drawn))
    return Question(context, matcher, max_tokens - drawn, data[offsets[first] : offsets[drawn]], before, values)


def values_of(answer: Answer, texts: Sequence[bytes]) -> dict[bytes, Any] | None:
    """Return the values by their texts; None where Python takes two of them for one, as ``1`` and ``True``."""
    made = {text: json.loads(text) if answer.form == "json" else _text_value(answer, text) for text in texts}
    kinds = {(type(value), value) for value in made.values()}
    return made if len(kinds) == len({value for _, value in kinds}) else None


def _text_value(answer: Answer, text: bytes) -> Any:
    """What a text stands for; itself where a check refuses it, or where its value can't be a key."""
    from pydantic import ValidationError

    shown = text.decode("utf-8", "replace")
    try:
        value = answer.value(shown)
        hash(value)
    except (ValidationError, TypeError):
        return shown
    return value


def few_texts(matcher: Matcher, *, is_json: bool, most: int) -> list[bytes] | None:
    """Return all texts that may stand where a matcher stands; None if there are more than ``most``.

    Args:
        matcher: at the first byte; it is left as it is.
        is_json: whether they are scalars within JSON, or all that is still to come.
        most: see above.

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
            ends = text.endswith(b'"') and string_end(text, 1) is not None  # looked at from its beginning only then
            live = b"" if ends else live
        else:
            ends = bool(text) and (at.is_accepting or not SCALAR_BYTES.issuperset(live))
            live = bytes(SCALAR_BYTES.intersection(live)) if text else live
        if ends:
            found.append(text)
        if len(found) + len(work) + len(live) > most or len(text) > _LONGEST:
            return None
        for byte in live:
            ahead = at.fork()
            ahead.accept_bytes(bytes([byte]))
            work.append((text + bytes([byte]), ahead))
    return found
