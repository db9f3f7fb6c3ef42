"""Next-token distributions over the allowed tokens.

``Projection``, made by ``project``, is normalised over the allowed tokens: samplers of tokens choose from it.
``Distribution`` is normalised over the whole vocabulary, with all EOS ids as one event: samplers of whole outputs need
the model's own log-probabilities.
"""

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
    "unusable_logits",
]

_REMEDY: Final = "check the model's weights and number format"


@final
@dataclass(frozen=True, slots=True)
class Projection:
    """The model's next-token distribution given that the mask allows the token.

    Attributes:
        ids: the allowed token ids, ascending, ``[n]``.
        log_p: their log-probabilities, normalised over the allowed tokens, float64 ``[n]``.
        log_z: log of the probability that the model gives to all allowed tokens together.
    """

    ids: NDArray[np.intp]
    log_p: NDArray[np.float64]
    log_z: float

    def runners_up(self, chosen: int, count: int) -> tuple[tuple[int, float], ...]:
        """The ``count`` most probable tokens except the one at index ``chosen``, with their log-probabilities."""
        if not count:
            return ()
        ids, log_p = self.ids, self.log_p
        best = np.argsort(-log_p, kind="stable")[: count + 1]
        return tuple((int(ids[index]), float(log_p[index])) for index in best if index != chosen)[:count]


def log_mass(logits: NDArray[Any]) -> float:
    """Log of the sum of the exponentials of ``logits``, in float64.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    top = float(logits.max())  # NaN if any logit is NaN
    if top == -np.inf:
        return top
    if not np.isfinite(top):
        raise unusable_logits()
    values = np.subtract(logits, top, dtype=np.float64)
    np.exp(values, out=values)
    return top + float(np.log(values.sum()))


def project(logits: NDArray[np.float32], ids: NDArray[np.intp], total: float | None = None) -> Projection:
    """Restrict the distribution of ``logits`` to ``ids``, and renormalise it.

    Args:
        logits: unnormalised log-probabilities, ``[V]``.
        ids: the allowed token ids, ascending, ``[n]``.
        total: ``log_mass(logits)`` if the caller has it.

    Raises:
        GenerationError: the model returned NaN or infinity, or gives no probability to any allowed token.

    Complexity: O(V), O(n) with ``total``.
    """
    total = log_mass(logits) if total is None else total
    log_p = logits[ids].astype(np.float64)
    mass = total if len(ids) == len(logits) else log_mass(log_p)
    if mass == -np.inf:
        raise nothing_possible(ids)
    log_p -= mass
    return Projection(ids, log_p, mass - total)


def unusable_logits() -> GenerationError:
    """The error if logits contain NaN or positive infinity."""
    return GenerationError("logits", "the model returned NaN or infinity", remedy=_REMEDY)


def nothing_possible(ids: NDArray[np.intp]) -> GenerationError:
    """The error if all allowed ``ids`` have probability zero."""
    return GenerationError(
        "logits",
        "the model gives probability zero to every token that the grammar allows",
        evidence=f"{len(ids)} tokens are allowed, for instance {ids[:8].tolist()}",
        remedy="check for another logits processor before the grammar's mask",
    )


BARE_END: Final = -1
"""The id of an end without EOS: the vocabulary has no EOS, and no token may follow."""
_NO_IDS: Final = np.zeros(0, dtype=np.int32)
_NO_LOGS: Final = np.zeros(0)


@final
@dataclass(frozen=True, slots=True)
class Distribution:
    """The model's log-probabilities of the allowed tokens, and the proposal ``log_q`` that is sampled from.

    All EOS ids are one event, under one id.  If a vocabulary has no EOS, the output ends where no token may follow:
    that end is then the only choice, with probability 1.  Made by ``Branches.distribution``.

    Attributes:
        ids: tokens, ascending, int32 ``[n]``.
        log_p: their log-probabilities under the model, normalised over the whole vocabulary, float64 ``[n]``, at most
            0; that of ``stop`` is the sum over all EOS ids.
        log_z: log of the probability of all of them together; minus infinity if there are none.
        stop: the id for EOS, the lowest allowed EOS id or ``BARE_END``; None if the output may not end.
        is_forced: whether there is only one token.
        tilt: ``log_q - log_p`` up to a constant, float64 ``[n]``; None is zero.
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
        """Make a distribution; the other attributes follow from these."""
        log_z = min(log_mass(log_p), 0.0) if len(ids) else -np.inf  # rounding
        log_tilted = log_mass(log_p + tilt) if tilt is not None and len(ids) else log_z
        return cls(ids, log_p, log_z, stop, len(ids) == 1, tilt, log_tilted)

    @classmethod
    def bare_end(cls) -> Self:
        """The distribution at an end without EOS."""
        return cls.of(np.array([BARE_END], dtype=np.int32), np.zeros(1), stop=BARE_END)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ends(self) -> bool:
        """Whether the output ends here without EOS."""
        return self.stop == BARE_END

    @property
    def log_q(self) -> NDArray[np.float64]:
        """Log-probabilities of the proposal, normalised, ``[n]``; all minus infinity if nothing is possible.  O(n)."""
        log_q = self.log_p if self.tilt is None else self.log_p + self.tilt
        return log_q - self.log_tilted if self.log_tilted > -np.inf else log_q

    @property
    def entropy(self) -> float:
        """Entropy of ``log_q`` in nats; 0 if there is no choice."""
        log_q = self.log_q
        possible = log_q[log_q > -np.inf]
        return max(0.0, float(-(np.exp(possible) * possible).sum()))

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.ids.nbytes + self.log_p.nbytes + (0 if self.tilt is None else self.tilt.nbytes)

    @property
    def is_possible(self) -> bool:
        """Whether any token has positive probability."""
        return self.log_tilted > -np.inf

    def weights(self) -> NDArray[np.float64]:
        """Weights in proportion to ``exp(log_q)``, the largest 1; requires ``is_possible``."""
        log_q = self.log_p if self.tilt is None else self.log_p + self.tilt
        weights: NDArray[np.float64] = np.exp(log_q - log_q.max())
        return weights

    def log_weight(self, index: int) -> float:
        """``log_p - log_q`` at an index: the importance weight of a token sampled there."""
        return self.log_tilted if self.tilt is None else self.log_tilted - float(self.tilt[index])

    def index(self, token: int) -> int:
        """The index of a token, or the index at which it would be inserted."""
        return int(np.searchsorted(self.ids, token))

    def step(self, index: int) -> Step:
        """The step that takes the token at an index."""
        return self.step_of(int(self.ids[index]), float(self.log_p[index]))

    def step_of(self, token: int, log_p: float) -> Step:
        """The step that takes ``token``, whose log-probability is ``log_p``."""
        logprob = 0.0 if self.is_forced else min(log_p - self.log_z, 0.0)
        return Step(None if token == self.stop else token, self.is_forced, logprob, self.log_z)

    def only(self, kept: NDArray[np.bool_]) -> Distribution:
        """The distribution over the tokens that ``kept`` selects, ``[n]``."""
        stop = self.stop if self.stop is not None and kept[self.index(self.stop)] else None
        tilt = None if self.tilt is None else self.tilt[kept]
        return Distribution.of(self.ids[kept], self.log_p[kept], stop=stop, tilt=tilt)

    def ranked(self, count: int) -> Distribution:
        """The ``count`` most probable tokens under the model, by falling probability, then by id.

        Only ``ids``, ``log_p`` and ``tilt`` change, so steps stay the same.
        """
        order = list(islice(descending(self.log_p, count), count))
        tilt = None if self.tilt is None else self.tilt[order]
        return replace(self, ids=self.ids[order], log_p=self.log_p[order], tilt=tilt)

    def blank(self) -> Distribution:
        """The same distribution without its tokens, which still makes steps by ``step_of``."""
        return replace(self, ids=_NO_IDS, log_p=_NO_LOGS, tilt=None)


def descending(keys: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield indices by falling key, then by index; the ``first`` of them are sorted without sorting the rest."""
    rest = np.arange(len(keys))
    if 0 < first < len(keys):
        threshold = np.partition(keys, len(keys) - first)[len(keys) - first]
        likely = np.flatnonzero(keys >= threshold)
        yield from likely[np.argsort(-keys[likely], kind="stable")].tolist()
        rest = np.flatnonzero(keys < threshold)
    yield from rest[np.argsort(-keys[rest], kind="stable")].tolist()
