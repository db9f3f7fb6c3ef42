"""Equality of outputs up to their cost."""

from __future__ import annotations

import pytest

from structgen.decode import Result

__all__ = ["assert_alike"]


def assert_alike(first: Result, second: Result, *, tolerance: float = 0.0) -> None:
    """Tokens, ends and scores are equal, scores up to ``tolerance``."""
    assert first.tokens == second.tokens
    assert first.text == second.text
    assert first.finish_reason == second.finish_reason
    assert len(first.steps) == len(second.steps)
    if not tolerance:
        assert first.steps == second.steps
        assert first.logprob == second.logprob
        assert first.log_z == second.log_z
        return
    for one, other in zip(first.steps, second.steps, strict=True):
        assert (one.token, one.forced, one.log_z is None) == (other.token, other.forced, other.log_z is None)
        assert one.logprob == pytest.approx(other.logprob, abs=tolerance)
        assert one.log_z == (None if other.log_z is None else pytest.approx(other.log_z, abs=tolerance))
