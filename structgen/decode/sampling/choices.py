"""What may follow a beginning, the stop among it as one choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import log_mass
from structgen.decode.result import Step

if TYPE_CHECKING:
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.models.protocol import Logits

__all__ = ["STOP", "Choices"]

STOP: Final = -1
"""Stands for the stop among the ids of tokens."""
_NO_IDS: Final = np.zeros(0, dtype=np.int32)
_NO_LOGS: Final = np.zeros(0)


@final
@dataclass(frozen=True, slots=True)
class Choices:
    """What the constraint, the budget and the masks of potentials allow after a beginning.

    A law over tokens counts each of several EOS ids; here stopping is one choice.  Where a vocabulary has no EOS, the
    output ends where nothing may follow: that is the only choice then, with probability 1.

    Attributes:
        ids: token ids, with ``STOP`` first where the output may stop, ascending, int32 ``[n]``.
        log_p: the model's log-probabilities, normalised over the whole vocabulary, float64 ``[n]``, at most 0.
        log_z: log of their sum; minus infinity where nothing may follow.
        is_forced: whether there is only one.
        ends: whether the output ends here without a stop.
    """

    ids: NDArray[np.int32]
    log_p: NDArray[np.float64]
    log_z: float
    is_forced: bool
    ends: bool = False

    @classmethod
    def after(cls, branches: Branches, branch: Branch, logits: Logits) -> Choices:
        """Return what may follow ``branch``, after which the model says ``logits``.

        Raises:
            GenerationError: the logits are not usable, or a potential is not.
        """
        allowed = branches.allowed(branch)
        if not len(allowed) and branches.ends_here(branch):
            return cls(np.array([STOP], dtype=np.int32), np.zeros(1), 0.0, is_forced=True, ends=True)
        total = log_mass(logits)
        is_stop = np.isin(allowed, list(branches.stops))
        tokens, stops = allowed[~is_stop], allowed[is_stop]
        log_p = logits[tokens].astype(np.float64) - total
        if len(stops):
            log_p = np.concatenate(([log_mass(logits[stops]) - total], log_p))
            tokens = np.concatenate(([STOP], tokens))
        log_p = np.minimum(log_p, 0.0)  # rounding
        log_z = min(log_mass(log_p), 0.0) if len(log_p) else -np.inf
        return cls(tokens.astype(np.int32), log_p, log_z, is_forced=len(tokens) == 1)

    @property
    def nbytes(self) -> int:
        """What it takes up."""
        return self.ids.nbytes + self.log_p.nbytes

    def blank(self) -> Choices:
        """The same without the choices."""
        return replace(self, ids=_NO_IDS, log_p=_NO_LOGS)

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, token: int) -> int:
        """The place of a token, or of ``STOP``, which must be among them."""
        return int(np.searchsorted(self.ids, token))

    def ranked(self, count: int) -> Choices:
        """The ``count`` most probable, the most probable first; of equally probable ones the lower ids first."""
        keys = -self.log_p
        candidates = np.arange(len(keys))
        if count < len(keys):
            candidates = np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
        order = candidates[np.argsort(keys[candidates], kind="stable")][:count]
        return replace(self, ids=self.ids[order], log_p=self.log_p[order])

    def step(self, token: int, log_p: float) -> Step:
        """The step that takes a token, or ``STOP``, of this log-probability."""
        taken = None if token == STOP else token
        if self.is_forced:
            return Step(taken, True, 0.0, log_p)
        return Step(taken, False, min(log_p - self.log_z, 0.0), self.log_z)

    def taken(self, branches: Branches, branch: Branch, token: int, log_p: float) -> Branch:
        """Return ``branch``, which has no cache, with a step more; it stays as it is."""
        if self.ends:
            return branches.finish(branch)
        return branches.grown(branch, self.step(token, log_p), log_p)
