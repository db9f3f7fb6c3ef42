"""What the law of each slot says about classes of tokens: one pass over all logits, and the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.models.diffusion.token_classes import TokenClasses

__all__ = ["ClassScores"]


@final
class ClassScores:
    """The laws of the free slots of one canvas, by class.  Rows are free slots, from left to right.

    Args:
        law: the laws.
        classes: of tokens.

    Complexity: O(free slots x vocabulary) for ``maxima``, ``log_sums`` and ``mean_logs``, each when first asked for,
        where the logits are; what comes from there is O(free slots x classes).
    """

    __slots__ = ("_classes", "_log_sums", "_logits", "_maxima", "_mean_logs", "law")

    def __init__(self, law: MeanField, classes: TokenClasses) -> None:
        self.law = law
        self._classes = classes
        self._logits = law.slot_logits.by_class(classes, law.scale)
        self._maxima: NDArray[np.float64] | None = None
        self._log_sums: NDArray[np.float64] | None = None
        self._mean_logs: NDArray[np.float64] | None = None

    def maxima(self) -> NDArray[np.float64]:
        """Log-probability of the most probable token of each class, float64 ``[rows, classes]``; -inf without tokens.

        The normalisers are those of the laws, so that sums of ``maxima`` are log-probabilities of canvases.
        """
        if self._maxima is None:
            scaled = self.law.scaled(self._logits.maxima(), self.law.largest[:, None])
            scaled[:, self._classes.sizes == 0] = -np.inf
            self._maxima = scaled - self._log_norms()[:, None]
        return self._maxima

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The most probable token of ``classes[i]``, which has some, in row ``rows[i]``; of equal ones the first."""
        return self._logits.best(rows, classes)

    def log_sums(self) -> NDArray[np.float64]:
        """Log-probability of each class, float64 ``[rows, classes]``; -inf without tokens."""
        if self._log_sums is None:
            self._log_norms()
            self._log_sums = self._logits.log_sums()
        return self._log_sums

    def mean_logs(self) -> NDArray[np.float64]:
        """Sum of ``p log p`` over the tokens of each class, float64 ``[rows, classes]``: what entropies are made of."""
        if self._mean_logs is None:
            self._log_norms()
            self._mean_logs = self._logits.mean_logs()
        return self._mean_logs

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """Draw a token of ``classes[i]`` in row ``rows[i]`` by its share, by the inverse distribution over ids."""
        return self._logits.draw(rows, classes, uniform)

    def _log_norms(self) -> NDArray[np.float64]:
        """The normalisers, which the pass over classes has found, and which the laws take over."""
        log_norms = self._logits.log_norms()
        self.law.set_log_norms(log_norms)
        return log_norms
