"""The law of the next token of a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import log_mass

__all__ = ["Law"]


@final
@dataclass(frozen=True, slots=True)
class Law:
    """What may come next, with how probable each token is.

    Attributes:
        ids: tokens, ascending, ``[n]``; EOS among them where the output may stop.
        log_p: their log-probabilities under the model, float64 ``[n]``: normalised over the whole vocabulary.
        log_q: what tokens are drawn from, not normalised: ``log_p``, and what potentials add that can tell at once.
        log_z: log of the sum of ``exp(log_q)``; minus infinity where nothing may come next.
    """

    ids: NDArray[np.intp]
    log_p: NDArray[np.float64]
    log_q: NDArray[np.float64]
    log_z: float

    @classmethod
    def of(cls, ids: NDArray[np.intp], log_p: NDArray[np.float64], added: NDArray[np.float64] | None = None) -> Law:
        """Make a law; ``added`` is ``[n]``."""
        log_q = log_p if added is None else log_p + added
        return cls(ids, log_p, log_q, log_mass(log_q) if len(ids) else -np.inf)

    def weights(self) -> NDArray[np.float64]:
        """In proportion to ``exp(log_q)``, the largest 1; there must be a token that has any probability."""
        weights: NDArray[np.float64] = np.exp(self.log_q - self.log_q.max())
        return weights

    def only(self, kept: NDArray[np.bool_]) -> Law:
        """The law of the tokens that are kept, not normalised anew."""
        log_q = self.log_q[kept]
        return Law(self.ids[kept], self.log_p[kept], log_q, log_mass(log_q) if len(log_q) else -np.inf)
