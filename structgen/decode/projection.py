"""The model's next-token law restricted to the tokens that a mask keeps.

Locally constrained decoding draws from the projection (in the literature (G)I-DLE): what the mask excludes gets
probability zero and the rest is renormalised.  ``log_z`` is the log of the probability that the rest had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.errors import GenerationError

__all__ = ["Projection", "allowed_ids", "log_mass", "no_law", "nothing_possible", "project", "runners_up"]

_REMEDY: Final = "check the model's weights and number format"


@final
@dataclass(frozen=True, slots=True)
class Projection:
    """The law of the next token given that the mask allows it.

    Attributes:
        ids: the allowed token ids, ascending, ``[n]``.
        log_p: their log-probabilities under the projection, float64 ``[n]``.
        log_z: log of the probability that the model gives to all allowed tokens together.
    """

    ids: NDArray[np.intp]
    log_p: NDArray[np.float64]
    log_z: float


def allowed_ids(row: NDArray[np.int32], size: int) -> NDArray[np.intp]:
    """The ids whose bit is set in a mask row of ``ceil(size / 32)`` words, ascending."""
    bits = np.unpackbits(row.view(np.uint8), count=size, bitorder="little")
    return np.flatnonzero(bits.view(np.bool_))


def log_mass(logits: NDArray[Any]) -> float:
    """Log of the sum of the exponentials of ``logits``, in float64.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    top = float(logits.max())  # NaN if any of them is
    if top == -np.inf:
        return top
    if not np.isfinite(top):
        raise no_law()
    values = np.subtract(logits, top, dtype=np.float64)
    np.exp(values, out=values)
    return top + float(np.log(values.sum()))


def project(logits: NDArray[np.float32], ids: NDArray[np.intp], total: float | None = None) -> Projection:
    """Restrict the law that ``logits`` describe to ``ids``.

    Args:
        logits: unnormalised log-probabilities, ``[V]``.
        ids: what is allowed, ascending, ``[n]``.
        total: ``log_mass(logits)`` where it is known.

    Raises:
        GenerationError: the model returned NaN or infinity, or gives no probability to any allowed token.

    Complexity: O(V), O(n) where ``total`` is given.
    """
    total = log_mass(logits) if total is None else total
    kept = logits[ids].astype(np.float64)
    mass = log_mass(kept)
    if mass == -np.inf:
        raise nothing_possible(ids)
    kept -= mass
    return Projection(ids, kept, mass - total)


def no_law() -> GenerationError:
    """The refusal of logits with NaN or plus infinity among them."""
    return GenerationError("logits", "the model returned NaN or infinity", remedy=_REMEDY)


def nothing_possible(ids: NDArray[np.intp]) -> GenerationError:
    """The refusal of logits that leave nothing to choose among the allowed ``ids``."""
    return GenerationError(
        "logits",
        "the model gives probability zero to every token that the grammar allows",
        evidence=f"{len(ids)} tokens are allowed, for instance {ids[:8].tolist()}",
        remedy="check for another logits processor before the grammar's mask",
    )


def runners_up(projection: Projection, chosen: int, count: int) -> tuple[tuple[int, float], ...]:
    """The ``count`` most probable tokens but the one at index ``chosen``, with their log-probabilities."""
    if not count:
        return ()
    ids, log_p = projection.ids, projection.log_p
    best = np.argsort(-log_p, kind="stable")[: count + 1]
    return tuple((int(ids[index]), float(log_p[index])) for index in best if index != chosen)[:count]
