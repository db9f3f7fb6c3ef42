"""What the law of each slot says about classes of tokens: one pass over all logits, and the last one.

The native passes and those of numpy say the same; numpy's serve small vocabularies, where they are as fast, and
float64 logits, whose sums they give to the last bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
from structgen_kernels import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField

__all__ = ["ClassScores", "class_layout"]


def class_layout(class_of: NDArray[np.int32], classes: int) -> _native.ClassLayout:
    """Return what native passes know of a partition: it takes as long as one row of logits, so it is kept."""
    return _native.ClassLayout(class_of, classes)


@final
class ClassScores:
    """The laws of the free slots of one canvas, by class.  Rows are free slots, from left to right.

    Args:
        law: the laws.
        class_of: int32 ``[vocabulary.size]``.
        classes: how many there are.
        layout: of the same classes, if it is known.

    Complexity: O(free slots x vocabulary) for ``maxima``, ``log_sums`` and ``mean_logs``, each when first asked for.
    """

    __slots__ = (
        "_by_chunk",
        "_class_of",
        "_classes",
        "_largest",
        "_layout",
        "_maxima",
        "_mean_logs",
        "_sizes",
        "_sums",
        "law",
    )

    def __init__(
        self, law: MeanField, class_of: NDArray[np.int32], classes: int, layout: _native.ClassLayout | None = None
    ) -> None:
        self.law = law
        self._class_of = class_of
        self._classes = classes
        self._sizes = np.bincount(class_of, minlength=classes)
        self._layout = (layout or class_layout(class_of, classes)) if law.is_native else None
        self._largest: NDArray[np.floating] | None = None
        self._maxima: NDArray[np.float64] | None = None
        self._sums: NDArray[np.float64] | None = None
        self._by_chunk: NDArray[np.float64] | None = None
        self._mean_logs: NDArray[np.float64] | None = None

    def maxima(self) -> NDArray[np.float64]:
        """Log-probability of the most probable token of each class, float64 ``[rows, classes]``; -inf without tokens.

        The normalisers are those of the laws, so that sums of ``maxima`` are log-probabilities of canvases.
        """
        if self._maxima is None:
            self._all_sums(with_maxima=True)
            scaled = self.law.scaled(self._largest_logits(), self.law.largest[:, None])
            scaled[:, self._sizes == 0] = -np.inf
            self._maxima = scaled - self.law.log_norms()[:, None]
        return self._maxima

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The most probable token of ``classes[i]``, which has some, in row ``rows[i]``; of equal ones the first."""
        logits, largest = self.law.logits, self._largest_logits()
        if self._layout is not None:
            return self._layout.find(_as_float32(logits), rows, classes, _as_float32(largest)[rows, classes])
        found = np.empty(len(rows), dtype=np.int32)
        for index, (row, of) in enumerate(zip(rows.tolist(), classes.tolist(), strict=True)):
            found[index] = np.flatnonzero((self._class_of == of) & (logits[row] == largest[row, of]))[0]
        return found

    def log_sums(self) -> NDArray[np.float64]:
        """Log-probability of each class, float64 ``[rows, classes]``; -inf without tokens."""
        with np.errstate(divide="ignore"):
            logs: NDArray[np.float64] = np.log(self._all_sums())
        return logs - self.law.log_norms()[:, None]

    def mean_logs(self) -> NDArray[np.float64]:
        """Sum of ``p log p`` over the tokens of each class, float64 ``[rows, classes]``: what entropies are made of."""
        if self._mean_logs is None:
            law = self.law
            if self._layout is not None:
                _, _, moments, _ = self._layout.sums(
                    _as_float32(law.logits), law.scale, _as_float32(law.largest), with_moments=True
                )
                if moments is None:
                    raise RuntimeError("moments were asked for")
            else:
                moments = self._by_class(lambda scaled: np.exp(scaled) * scaled)
            norms = law.log_norms()[:, None]
            self._mean_logs = (moments - self._all_sums() * norms) / np.exp(norms)
        return self._mean_logs

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """Draw a token of ``classes[i]`` in row ``rows[i]`` by its share, by the inverse distribution over ids."""
        law, sums = self.law, self._all_sums()
        if self._layout is not None and self._by_chunk is not None:
            return self._layout.draw(
                _as_float32(law.logits),
                law.scale,
                _as_float32(law.largest),
                sums,
                self._by_chunk,
                rows,
                classes,
                uniform,
            )
        drawn = np.empty(len(rows), dtype=np.int32)
        for index, (row, of) in enumerate(zip(rows.tolist(), classes.tolist(), strict=True)):
            members = np.flatnonzero(self._class_of == of)
            running = np.cumsum(np.exp(law.scaled(law.logits[row, members], law.largest[row])))
            at = int(np.searchsorted(running, uniform[index] * running[-1], side="right"))
            drawn[index] = members[min(at, len(members) - 1)]
        return drawn

    def _all_sums(self, *, with_maxima: bool = False) -> NDArray[np.float64]:
        """Sums of exponentials by class, float64 ``[rows, classes]``, which give the laws their normalisers.

        Maxima, where they are wanted too, are found in the same pass.
        """
        if self._sums is None:
            law = self.law
            if self._layout is not None:
                self._sums, self._by_chunk, _, largest = self._layout.sums(
                    _as_float32(law.logits), law.scale, _as_float32(law.largest), with_maxima=with_maxima
                )
                self._largest = largest
            else:
                self._sums = self._by_class(np.exp)
            law.set_log_norms(np.log(self._sums.sum(axis=1)))
        return self._sums

    def _by_class(self, of_scaled: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Sums over the tokens of each class of a function of their scaled logits."""
        law = self.law
        made = np.empty((len(law.free), self._classes))
        for row in range(len(law.free)):
            values = of_scaled(law.scaled(law.logits[row], law.largest[row]))
            made[row] = np.bincount(self._class_of, values, self._classes)
        return made

    def _largest_logits(self) -> NDArray[np.floating]:
        """The largest logit of each class as the model gave it, ``[rows, classes]``; -inf without tokens."""
        if self._largest is None:
            logits = self.law.logits
            if self._layout is not None:
                self._largest = self._layout.maxima(_as_float32(logits))
            else:
                order = np.argsort(self._class_of, kind="stable")
                present = np.flatnonzero(self._sizes)
                starts = (np.cumsum(self._sizes) - self._sizes)[present]
                self._largest = np.full((len(logits), self._classes), -np.inf, dtype=logits.dtype)
                self._largest[:, present] = np.maximum.reduceat(logits[:, order], starts, axis=1)
        return self._largest


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32)
