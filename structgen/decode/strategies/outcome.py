"""What strategies return, and the functions of their users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from structgen.decode.potentials import Hypothesis
from structgen.decode.sampling.samples import Sample, Samples
from structgen.errors import GenerationError, StructgenError

if TYPE_CHECKING:
    from structgen.decode.sampling.branches import Branch, Branches

__all__ = ["Judge", "at_least", "judged", "outcome"]

Judge: TypeAlias = Callable[[Hypothesis], float]
"""Says what a beginning, or a complete output, is worth."""


def outcome(branches: Branches, ranked: Iterable[tuple[Branch, float]], *, drawn: int = 1) -> Samples:
    """Return finished branches as samples.

    Args:
        branches: of the run.
        ranked: each with the logarithm of its weight, the heaviest first.
        drawn: how many outputs were begun.
    """
    return branches.samples(
        (Sample(branches.result(branch), weight, 1, branch.score) for branch, weight in ranked), particles=drawn
    )


def judged(judge: Judge, hypothesis: Hypothesis, *, what: str) -> float:
    """Ask a user's function.

    Raises:
        GenerationError: it raised an error, or its answer is no score.
    """
    shown = f"for {hypothesis!r}"
    try:
        score = float(judge(hypothesis))
    except StructgenError:
        raise
    except Exception as error:
        raise GenerationError(
            what, f"it raised {type(error).__name__}: {error}", evidence=shown, remedy="make it answer for every output"
        ) from error
    if math.isnan(score) or score == math.inf:
        raise GenerationError(
            what, f"it gives {score}", evidence=shown, remedy="return a finite number, or -inf for what is unwanted"
        )
    return score


def at_least(owner: str, least: float, **values: float) -> None:
    """Check numbers that are given to a strategy.

    Raises:
        ValueError: one is below ``least``, or no number; or no integer where ``least`` is one.
    """
    for name, value in values.items():
        if isinstance(least, int):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{owner}: {name} must be an integer of at least {least}; found {value!r}")
        elif not value >= least:
            raise ValueError(f"{owner}: {name} must be a number of at least {least:g}; found {value!r}")
