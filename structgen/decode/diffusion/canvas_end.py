"""What a full canvas says: its member, and why it ended there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.diffusion.posterior import Canvas
    from structgen.decode.result import FinishReason
    from structgen.engine import Constraint, Vocabulary

__all__ = ["finish_reason", "member_tokens"]


def member_tokens(canvas: Canvas, vocabulary: Vocabulary) -> list[int]:
    """Return what stands before the first EOS."""
    ends = np.flatnonzero(np.isin(canvas, vocabulary.eos))
    found: list[int] = canvas[: ends[0]].tolist() if len(ends) else canvas.tolist()
    return found


def finish_reason(constraint: Constraint, tokens: list[int], *, has_stop: bool) -> FinishReason:
    """Return why the output ended, and let the matcher of autoregressive decoding check that it is a member.

    Args:
        constraint: of the output.
        tokens: the output, EOS left out.
        has_stop: whether EOS follows on the canvas.

    Raises:
        GenerationError: it is none, as may happen with a policy that commits tokens of several completions.
    """
    matcher = constraint.matcher()
    accepted = next((place for place, token in enumerate(tokens) if not matcher.accept(token)), len(tokens))
    if accepted < len(tokens) or not matcher.is_accepting:
        raise GenerationError(
            "canvas",
            "what was committed is no member of the grammar",
            evidence=f"{constraint.vocabulary.decode(tokens)!r} breaks off at token {accepted}",
            remedy="a commit policy must commit tokens of one completion that a posterior gave",
        )
    if has_stop:
        return "stop"
    goes_on = len(matcher.live_bytes()) or len(matcher.live_specials())
    return "length" if goes_on else "stop"
