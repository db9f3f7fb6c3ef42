"""What all posteriors share: scores of token classes instead of tokens, and the way back from classes to tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import Leaders
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.decode.diffusion.posterior import Tail
    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol.diffusion import TokenClasses

__all__ = ["ClassPosterior", "ClassScores", "sampled_index"]


@final
class ClassScores:
    """The distributions of the free slots of one canvas, by class.  Rows are free slots, from left to right.

    Args:
        distribution: the distributions.
        classes: of tokens.

    Complexity: O(free slots x vocabulary) for ``maxima``, ``log_sums`` and ``mean_logs``, each when first asked for,
        where the logits are; what comes from there is O(free slots x classes).
    """

    __slots__ = ("_classes", "_log_sums", "_logits", "_maxima", "_mean_logs", "distribution")

    def __init__(self, distribution: MeanField, classes: TokenClasses) -> None:
        self.distribution = distribution
        self._classes = classes
        self._logits = distribution.slot_logits.by_class(classes, distribution.scale)
        self._maxima: NDArray[np.float64] | None = None
        self._log_sums: NDArray[np.float64] | None = None
        self._mean_logs: NDArray[np.float64] | None = None

    def maxima(self) -> NDArray[np.float64]:
        """Log-probability of the most probable token of each class, float64 ``[rows, classes]``; -inf without tokens.

        The normalisers are those of the distributions, so that sums of ``maxima`` are log-probabilities of canvases.
        """
        if self._maxima is None:
            scaled = self.distribution.scaled(self._logits.maxima(), self.distribution.largest[:, None])
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
        """The normalisers, which the pass over classes has found, and which the distributions take over."""
        log_norms = self._logits.log_norms()
        self.distribution.set_log_norms(log_norms)
        return log_norms


class ClassPosterior(ABC):
    """A posterior that is known by classes of tokens: its marginals, and the tokens of a completion.

    Args:
        distribution: the mean-field distribution.
        tail: whether the tail costs anything.
        vocabulary: of the slots.
        classes: of the tokens.

    Raises:
        GenerationError: the distribution is over another number of tokens.
    """

    def __init__(self, distribution: MeanField, tail: Tail, vocabulary: Vocabulary, classes: TokenClasses) -> None:
        if len(distribution.free) and distribution.slot_logits.shape[1] != len(classes.of):
            raise GenerationError(
                "diffusion decoding",
                f"there must be one logit for each of {len(classes.of)} tokens",
                evidence=f"found {distribution.slot_logits.shape[1]} in a slot",
                remedy="compile the grammar for the vocabulary of this model, padding of its head included",
            )
        self.distribution = distribution
        self.tail = tail
        self.scores = ClassScores(distribution, classes)
        self._classes = classes
        self._class_of = classes.of
        # What the slots of a tail are filled with: nothing where there is no EOS, for then there is no tail.
        self._filler = vocabulary.eos[:1]

    @abstractmethod
    def _factors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What makes marginals of probabilities.

        Returns:
            float64 ``[slots, classes]``, log of the factor for tokens of each class; float64 ``[slots]``, the
            probability that the slot lies in a tail that costs nothing.
        """

    @abstractmethod
    def _classes_of(self, label: int) -> NDArray[np.int32]:
        """The classes of a label, repeated where they count more than once."""

    def shares(self, tokens: NDArray[np.int32], /) -> NDArray[np.float64]:
        """See ``CanvasPosterior.shares``."""
        around, tail = self._factors()
        slots = np.arange(len(tokens))
        found: NDArray[np.float64] = np.exp(
            self.distribution.log_prob_of(tokens) + around[slots, self._class_of[tokens]]
        )
        found += np.where(np.isin(tokens, self._filler), tail, 0.0)
        found[self.distribution.canvas != FREE] = 1.0
        return np.minimum(found, 1.0, out=found)

    def marginals(self, slot: int, /) -> NDArray[np.float64]:
        """See ``CanvasPosterior.marginals``."""
        distribution = self.distribution
        found = np.zeros(len(self._class_of))
        if distribution.canvas[slot] != FREE:
            found[distribution.canvas[slot]] = 1.0
            return found
        around, tail = self._factors()
        np.exp(distribution.log_probs(slot) + around[slot][self._class_of], out=found)
        found[list(self._filler)] += tail[slot]
        return found

    def leaders(self) -> Leaders:
        """See ``CanvasPosterior.leaders``."""
        distribution = self.distribution
        tokens, shares, seconds = distribution.canvas.copy(), np.ones(distribution.slots), np.zeros(distribution.slots)
        if len(distribution.free):
            factors, tail = self._factors()
            # What the tail adds to its filler is added here, so one more token may lead.
            count = min(2 + len(self._filler), len(self._class_of))
            found, values = distribution.slot_logits.leading(
                self._classes, factors[distribution.free], distribution.scale, count
            )
            made = np.exp(values - distribution.log_norms()[:, None])
            for token in self._filler:
                made[found == token] = 0.0
                of_distribution = np.exp(
                    distribution.log_prob_of(np.full(distribution.slots, token)) + factors[:, self._class_of[token]]
                )
                found = np.column_stack([found, np.full(len(found), token, dtype=np.int32)])
                made = np.column_stack([made, (of_distribution + tail)[distribution.free]])
            order = np.lexsort((found, -made))
            tokens[distribution.free] = np.take_along_axis(found, order[:, :1], axis=1)[:, 0]
            ordered = np.take_along_axis(made, order, axis=1)
            shares[distribution.free] = np.minimum(ordered[:, 0], 1.0)
            seconds[distribution.free] = ordered[:, 1] if ordered.shape[1] > 1 else 0.0
        return Leaders(tokens, shares, seconds)

    def entropies(self) -> NDArray[np.float64]:
        """See ``CanvasPosterior.entropies``."""
        distribution = self.distribution
        factors, tail = self._factors()
        found = np.zeros(distribution.slots)
        log_factors, log_shares = factors[distribution.free], self.scores.log_sums()
        with np.errstate(invalid="ignore"):  # 0 times infinity
            surprise = np.exp(log_factors) * (self.scores.mean_logs() + np.exp(log_shares) * log_factors)
        found[distribution.free] = -np.where(np.isfinite(log_factors + log_shares), surprise, 0.0).sum(axis=1)
        for token in self._filler:  # its share in the tail is added to the one of the distribution
            share = np.exp(
                distribution.log_prob_of(np.full(distribution.slots, token)) + factors[:, self._class_of[token]]
            )
            found[distribution.free] += (_negated_entropy(share) - _negated_entropy(share + tail))[distribution.free]
        return np.maximum(found, 0.0)

    def _choose(
        self,
        tokens: NDArray[np.int32],
        labels: NDArray[np.int32],
        choose: Callable[[int, NDArray[np.int32]], int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Choose a class of the label of each slot that is still free, and return their rows and classes."""
        free = np.flatnonzero(tokens == FREE)
        rows = self.distribution.row_of[free]
        chosen = np.empty(len(free), dtype=np.int32)
        for index, (row, label) in enumerate(zip(rows.tolist(), labels[free].tolist(), strict=True)):
            of = self._classes_of(label)
            chosen[index] = of[choose(row, of) if len(of) > 1 else 0]
        return rows, chosen


def _negated_entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    made: NDArray[np.float64] = shares * np.log(np.where(shares > 0, shares, 1.0))
    return made


def sampled_index(log_weights: NDArray[np.float64], uniform: float) -> int:
    """An index drawn by its weight; never one of weight 0."""
    weights = np.exp(log_weights - log_weights.max())
    running = weights.cumsum()
    at = int(running.searchsorted(uniform * running[-1], side="right"))
    return at if at < len(weights) and weights[at] > 0 else int(np.flatnonzero(weights)[-1])
