"""How sure a model was of each field of what it wrote."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import repeat
from typing import TYPE_CHECKING, Any

from structgen.program.run import FieldScore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from structgen.decode import Result
    from structgen.program.answer import Answer
    from structgen.program.fields import FieldEnd

__all__ = ["field_scores", "token_offsets"]


def field_scores(
    answer: Answer,
    result: Result,
    ends: Sequence[FieldEnd],
    value: Any,
    *,
    marginals: Iterable[Mapping[Any, float] | None] | None = None,
) -> tuple[FieldScore, ...]:
    """Return the fields of an answer with the log-probabilities of their tokens.

    Args:
        answer: what was asked for.
        result: the output.
        ends: where its fields lie; of a text the whole.
        value: what a text stands for.
        marginals: for each field, where they were asked for.
    """
    offsets = token_offsets(result.tokens, result.vocabulary.tokens)
    sums = [0.0]
    for step in result.steps:
        sums.append(sums[-1] + (step.logprob if math.isfinite(step.logprob) else -math.inf))
    is_text = answer.form == "text"
    found: list[FieldScore] = []
    for end, weighed in zip(ends, repeat(None) if marginals is None else marginals, strict=False):
        first = max(bisect_left(offsets, end.start + 1) - 1, 0)
        last = min(bisect_left(offsets, end.end), len(result.tokens))
        if not end.path:
            last = len(result.steps)  # with the stop
        logprob = sums[last] - sums[first]
        found.append(FieldScore(end.path, value if is_text else end.value, end.start, end.end, logprob, weighed))
    return tuple(found)


def token_offsets(tokens: Sequence[int], texts: Sequence[bytes]) -> list[int]:
    """Return the byte at which each token begins, and the end."""
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(texts[token]))
    return offsets
