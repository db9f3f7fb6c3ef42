"""Next-token distribution over the tokens that a mask allows; ``project`` renormalizes logits over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.result import Step
from structgen.errors import GenerationError

__all__ = [
    "BARE_END",
    "Distribution",
    "Projection",
    "descending",
    "log_mass",
    "nothing_possible",
    "project",
    "runners_up",
    "unusable_logits",
]


_REMEDY: Final = "check the model's weights and number format"


@final
@dataclass(frozen=True, slots=True)
class Projection:
    """The distribution of the next token given that the mask allows it.

    Attributes:
        ids: the allowed token ids, ascending, ``[n]``.
        log_p: their log-probabilities under the projection, float64 ``[n]``.
        log_z: log of the probability that the model gives to all allowed tokens together.
    """

    ids: NDArray[np.intp]
    log_p: NDArray[np.float64]
    log_z: float


def log_mass(logits: NDArray[Any]) -> float:
    """Log of the sum of the exponentials of ``logits``, in float64.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    top = float(logits.max())  # NaN if any of them is
    if top == -np.inf:
        return top
    if not np.isfinite(top):
        raise unusable_logits()
    values = np.subtract(logits, top, dtype=np.float64)
    np.exp(values, out=values)
    return top + float(np.log(values.sum()))


def project(logits: NDArray[np.float32], ids: NDArray[np.intp], total: float | None = None) -> Projection:
    """Restrict the distribution that ``logits`` describe to ``ids``.

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


def unusable_logits() -> GenerationError:
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


BARE_END: Final = -1
"""Stands among the ids for an end that no token marks: where a vocabulary has no EOS and nothing may follow."""
_NO_IDS: Final = np.zeros(0, dtype=np.int32)
_NO_LOGS: Final = np.zeros(0)


@final
@dataclass(frozen=True, slots=True)
class Distribution:
    """What may come next, as ``Branches.distribution`` makes it.

    Stopping is one choice, whichever of several EOS ids it is written with.  Where a vocabulary has no EOS, the output
    ends where nothing may follow: that is the only choice then, with probability 1.

    Attributes:
        ids: tokens, ascending, int32 ``[n]``.
        log_p: their log-probabilities under the model, normalised over the whole vocabulary, float64 ``[n]``, at most
            0; that of the stop is the sum over all EOS ids.
        log_z: log of the probability of all of them together; minus infinity where nothing may come next.
        stop: the id that stands for the stop, the lowest EOS id or ``BARE_END``; None where the output may not stop.
        is_forced: whether there is only one.
        tilt: what ``log_q`` has more than ``log_p``, not normalised, float64 ``[n]``; None for nothing.
        log_tilted: log of the sum of ``exp(log_p + tilt)``.
    """

    ids: NDArray[np.int32]
    log_p: NDArray[np.float64]
    log_z: float
    stop: int | None
    is_forced: bool
    tilt: NDArray[np.float64] | None
    log_tilted: float

    @classmethod
    def of(
        cls,
        ids: NDArray[np.int32],
        log_p: NDArray[np.float64],
        *,
        stop: int | None = None,
        tilt: NDArray[np.float64] | None = None,
    ) -> Self:
        """Make a distribution of its attributes; the others follow from them."""
        log_z = min(log_mass(log_p), 0.0) if len(ids) else -np.inf  # rounding
        log_tilted = log_mass(log_p + tilt) if tilt is not None and len(ids) else log_z
        return cls(ids, log_p, log_z, stop, len(ids) == 1, tilt, log_tilted)

    @classmethod
    def bare_end(cls) -> Self:
        """The distribution where the output ends without EOS."""
        return cls.of(np.array([BARE_END], dtype=np.int32), np.zeros(1), stop=BARE_END)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ends(self) -> bool:
        """Whether the output ends here without EOS."""
        return self.stop == BARE_END

    @property
    def log_q(self) -> NDArray[np.float64]:
        """What tokens are drawn from, normalised, ``[n]``; all minus infinity where nothing is possible.

        Complexity: O(n) each time.
        """
        log_q = self.log_p if self.tilt is None else self.log_p + self.tilt
        return log_q - self.log_tilted if self.log_tilted > -np.inf else log_q

    @property
    def entropy(self) -> float:
        """Of ``log_q``, in nats; 0 where there is no choice."""
        log_q = self.log_q
        possible = log_q[log_q > -np.inf]
        return max(0.0, float(-(np.exp(possible) * possible).sum()))

    @property
    def nbytes(self) -> int:
        """What it takes up."""
        return self.ids.nbytes + self.log_p.nbytes + (0 if self.tilt is None else self.tilt.nbytes)

    @property
    def is_possible(self) -> bool:
        """Whether there is anything to draw."""
        return self.log_tilted > -np.inf

    def weights(self) -> NDArray[np.float64]:
        """In proportion to ``exp(log_q)``, the largest 1; something must be possible."""
        log_q = self.log_p if self.tilt is None else self.log_p + self.tilt
        weights: NDArray[np.float64] = np.exp(log_q - log_q.max())
        return weights

    def log_weight(self, index: int) -> float:
        """``log_p - log_q`` at an index: the weight of what was drawn there."""
        return self.log_tilted if self.tilt is None else self.log_tilted - float(self.tilt[index])

    def index(self, token: int) -> int:
        """The place of a token, or where it would stand."""
        return int(np.searchsorted(self.ids, token))

    def step(self, index: int) -> Step:
        """The step that takes what is at an index."""
        return self.step_of(int(self.ids[index]), float(self.log_p[index]))

    def step_of(self, token: int, log_p: float) -> Step:
        """The step that takes one of the tokens, of this log-probability."""
        logprob = 0.0 if self.is_forced else min(log_p - self.log_z, 0.0)
        return Step(None if token == self.stop else token, self.is_forced, logprob, self.log_z)

    def only(self, kept: NDArray[np.bool_]) -> Distribution:
        """The distribution of the tokens that are kept."""
        stop = self.stop if self.stop is not None and kept[self.index(self.stop)] else None
        tilt = None if self.tilt is None else self.tilt[kept]
        return Distribution.of(self.ids[kept], self.log_p[kept], stop=stop, tilt=tilt)

    def ranked(self, count: int) -> Distribution:
        """The ``count`` most probable under the model, the most probable first, of equal ones those with lower ids.

        Only ``ids``, ``log_p`` and ``tilt`` change: steps stay what they are.
        """
        order = list(islice(descending(self.log_p, count), count))
        tilt = None if self.tilt is None else self.tilt[order]
        return replace(self, ids=self.ids[order], log_p=self.log_p[order], tilt=tilt)

    def blank(self) -> Distribution:
        """The same without tokens, for ``step_of``."""
        return replace(self, ids=_NO_IDS, log_p=_NO_LOGS, tilt=None)


def descending(keys: NDArray[np.float64], first: int) -> Iterator[int]:
    """The indices, those of the largest keys first, of equal ones the lower; ``first`` of them are found at once."""
    rest = np.arange(len(keys))
    if 0 < first < len(keys):
        last = np.partition(keys, len(keys) - first)[len(keys) - first]
        likely = np.flatnonzero(keys >= last)
        yield from likely[np.argsort(-keys[likely], kind="stable")].tolist()
        rest = np.flatnonzero(keys < last)
    yield from rest[np.argsort(-keys[rest], kind="stable")].tolist()
