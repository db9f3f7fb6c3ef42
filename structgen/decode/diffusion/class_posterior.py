"""The common part of all posteriors: scores of token classes instead of tokens, and tokens from chosen classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import Leaders
from structgen.engine.mask import empty_masks, pack
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.mean_field import MeanField
    from structgen.decode.diffusion.posterior import Canvas, Tail
    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol.diffusion import TokenClasses

__all__ = ["ClassPosterior", "ClassScores", "class_masks", "sampled_index"]


@final
class ClassScores:
    """The distributions of the free slots of one canvas, by token class. Rows are free slots, from left to right.

    Complexity: O(free slots x vocabulary) for ``maxima``, ``log_sums`` and ``mean_logs``, each on first use and on the
        device of the logits; O(free slots x classes) is copied to the host.
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

        The normalisers are those of the distributions, so sums of ``maxima`` are log-probabilities of canvases.
        """
        if self._maxima is None:
            scaled = self.distribution.scaled(self._logits.maxima(), self.distribution.largest[:, None])
            scaled[:, self._classes.sizes == 0] = -np.inf
            self._maxima = scaled - self._log_norms()[:, None]
        return self._maxima

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The most probable token of the non-empty class ``classes[i]`` in row ``rows[i]``; of equal ones the first."""
        return self._logits.best(rows, classes)

    def log_sums(self) -> NDArray[np.float64]:
        """Log-probability of each class, float64 ``[rows, classes]``; -inf without tokens."""
        if self._log_sums is None:
            self._log_norms()
            self._log_sums = self._logits.log_sums()
        return self._log_sums

    def mean_logs(self) -> NDArray[np.float64]:
        """Sum of ``p log p`` over the tokens of each class, float64 ``[rows, classes]``, for entropies."""
        if self._mean_logs is None:
            self._log_norms()
            self._mean_logs = self._logits.mean_logs()
        return self._mean_logs

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """Sample a token of ``classes[i]`` in row ``rows[i]`` by its share, by inversion over ascending token ids."""
        return self._logits.draw(rows, classes, uniform)

    def _log_norms(self) -> NDArray[np.float64]:
        """The normalisers: computed by the pass over classes, and shared with the distribution."""
        log_norms = self._logits.log_norms()
        self.distribution.set_log_norms(log_norms)
        return log_norms


def class_masks(
    vocabulary: Vocabulary, class_of: NDArray[np.int32], allowed: NDArray[np.bool_], canvas: Canvas
) -> NDArray[np.int32]:
    """Return the token mask of each slot, int32 ``[slots, ceil(V / 32)]``; a fixed slot allows its token only.

    ``allowed`` are the classes that each slot may hold, bool ``[slots, classes]``.
    """
    words = empty_masks(vocabulary, len(canvas))
    for slot, classes in enumerate(allowed):
        is_free = canvas[slot] == FREE
        words[slot] = pack(classes[class_of] if is_free else np.arange(vocabulary.size) == canvas[slot])
    return words


class ClassPosterior(ABC):
    """A posterior over token classes: marginals, and the tokens of a completion.

    Raises:
        GenerationError: the distribution has another number of tokens.
    """

    def __init__(self, distribution: MeanField, tail: Tail, vocabulary: Vocabulary, classes: TokenClasses) -> None:
        if len(distribution.free) and distribution.slot_logits.shape[1] != len(classes.of):
            raise GenerationError(
                "diffusion decoding",
                f"there must be one logit for each of {len(classes.of)} tokens",
                evidence=f"found {distribution.slot_logits.shape[1]} in a slot",
                remedy="compile the grammar for this model's vocabulary, including the padding of its output layer",
            )
        self.distribution = distribution
        self.tail = tail
        self.scores = ClassScores(distribution, classes)
        self._classes = classes
        self._class_of = classes.of
        # The token of tail slots; empty without EOS, since then there is no tail.
        self._filler = vocabulary.eos[:1]

    @abstractmethod
    def _factors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The factors between the mean-field distribution and the marginals.

        Returns:
            float64 ``[slots, classes]``, log of the factor for tokens of each class; float64 ``[slots]``, the
            probability that the slot is in an unscored tail.
        """

    @property
    @abstractmethod
    def _needed(self) -> str:
        """What a canvas needs, for messages."""

    def _check(self, total: float) -> None:
        """Raise ``GenerationError`` if the mass of all completions is zero."""
        if not np.isfinite(total):
            raise GenerationError(
                "diffusion decoding",
                "no completion of the canvas spells a string of the grammar",
                evidence=f"{self.distribution.slots} slots, {len(self.distribution.free)} of them free; {self._needed}",
                remedy="give the canvas more slots, or check its fixed slots",
            )

    @abstractmethod
    def _classes_of(self, label: int) -> NDArray[np.int32]:
        """The classes of a label, repeated if they count more than once."""

    def shares(self, tokens: NDArray[np.int32], /) -> NDArray[np.float64]:
        """See ``CanvasPosterior.shares``."""
        around, tail = self._factors()
        slots = np.arange(len(tokens))
        shares: NDArray[np.float64] = np.exp(
            self.distribution.log_prob_of(tokens) + around[slots, self._class_of[tokens]]
        )
        shares += np.where(np.isin(tokens, self._filler), tail, 0.0)
        shares[self.distribution.canvas != FREE] = 1.0
        return np.minimum(shares, 1.0, out=shares)

    def marginals(self, slot: int, /) -> NDArray[np.float64]:
        """See ``CanvasPosterior.marginals``."""
        distribution = self.distribution
        probs = np.zeros(len(self._class_of))
        if distribution.canvas[slot] != FREE:
            probs[distribution.canvas[slot]] = 1.0
            return probs
        around, tail = self._factors()
        np.exp(distribution.log_probs(slot) + around[slot][self._class_of], out=probs)
        probs[list(self._filler)] += tail[slot]
        return probs

    def leaders(self) -> Leaders:
        """See ``CanvasPosterior.leaders``."""
        distribution = self.distribution
        tokens, shares, seconds = distribution.canvas.copy(), np.ones(distribution.slots), np.zeros(distribution.slots)
        if len(distribution.free):
            factors, tail = self._factors()
            # The tail is added to its filler token below, so one more token may lead.
            count = min(2 + len(self._filler), len(self._class_of))
            leading, values = distribution.slot_logits.leading(
                self._classes, factors[distribution.free], distribution.scale, count
            )
            probs = np.exp(values - distribution.log_norms()[:, None])
            for token in self._filler:
                probs[leading == token] = 0.0
                of_distribution = np.exp(
                    distribution.log_prob_of(np.full(distribution.slots, token)) + factors[:, self._class_of[token]]
                )
                leading = np.column_stack([leading, np.full(len(leading), token, dtype=np.int32)])
                probs = np.column_stack([probs, (of_distribution + tail)[distribution.free]])
            order = np.lexsort((leading, -probs))
            tokens[distribution.free] = np.take_along_axis(leading, order[:, :1], axis=1)[:, 0]
            ordered = np.take_along_axis(probs, order, axis=1)
            shares[distribution.free] = np.minimum(ordered[:, 0], 1.0)
            seconds[distribution.free] = ordered[:, 1] if ordered.shape[1] > 1 else 0.0
        return Leaders(tokens, shares, seconds)

    def entropies(self) -> NDArray[np.float64]:
        """See ``CanvasPosterior.entropies``."""
        distribution = self.distribution
        factors, tail = self._factors()
        entropies = np.zeros(distribution.slots)
        log_factors, log_shares = factors[distribution.free], self.scores.log_sums()
        with np.errstate(invalid="ignore"):  # 0 times infinity
            surprise = np.exp(log_factors) * (self.scores.mean_logs() + np.exp(log_shares) * log_factors)
        entropies[distribution.free] = -np.where(np.isfinite(log_factors + log_shares), surprise, 0.0).sum(axis=1)
        for token in self._filler:  # its share of the tail is added to that of the distribution
            share = np.exp(
                distribution.log_prob_of(np.full(distribution.slots, token)) + factors[:, self._class_of[token]]
            )
            entropies[distribution.free] += (_negated_entropy(share) - _negated_entropy(share + tail))[
                distribution.free
            ]
        return np.maximum(entropies, 0.0)

    def _with_tail(self, in_tail: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The canvas with its free slots in the tail filled; those before the tail stay free.

        Tail slots are not filled if their tokens are scored: then they are chosen as all others.
        """
        tokens = self.distribution.canvas.copy()
        if self.tail == "free":
            tokens[(tokens == FREE) & in_tail] = (self._filler or (FREE,))[0]
        return tokens

    def _best_tokens(self, labels: NDArray[np.int32], in_tail: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The most probable completion in which the free slots before the tail have ``labels``."""
        maxima = self.scores.maxima()
        tokens = self._with_tail(in_tail)
        rows, classes = self._choose(tokens, labels, lambda row, of: int(maxima[row, of].argmax()))
        tokens[tokens == FREE] = self.scores.best(rows, classes)
        return tokens

    def _sampled_tokens(
        self, labels: NDArray[np.int32], in_tail: NDArray[np.bool_], generator: np.random.Generator
    ) -> NDArray[np.int32]:
        """Sample a completion in which the free slots before the tail have ``labels``."""
        log_sums = self.scores.log_sums()
        tokens = self._with_tail(in_tail)
        rows, classes = self._choose(
            tokens, labels, lambda row, of: sampled_index(log_sums[row, of], generator.random())
        )
        tokens[tokens == FREE] = self.scores.draw(rows, classes, generator.random(len(rows)))
        return tokens

    def _log_prob(self, tokens: NDArray[np.int32], in_tail: NDArray[np.bool_]) -> float:
        """The log-probability of a completion, whose tail counts only if it is scored."""
        each = self.distribution.log_prob_of(tokens)
        if self.tail == "free":
            each[in_tail] = 0.0
        return float(each.sum())

    def _choose(
        self, tokens: NDArray[np.int32], labels: NDArray[np.int32], choose: Callable[[int, NDArray[np.int32]], int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Choose a class for each free slot from those of its label; return logits rows and classes."""
        free = np.flatnonzero(tokens == FREE)
        rows = self.distribution.row_of[free]
        chosen = np.empty(len(free), dtype=np.int32)
        for index, (row, label) in enumerate(zip(rows.tolist(), labels[free].tolist(), strict=True)):
            of = self._classes_of(label)
            chosen[index] = of[choose(row, of) if len(of) > 1 else 0]
        return rows, chosen


def _negated_entropy(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    terms: NDArray[np.float64] = shares * np.log(np.where(shares > 0, shares, 1.0))
    return terms


def sampled_index(log_weights: NDArray[np.float64], uniform: float) -> int:
    """Return an index sampled by its weight; never one of weight 0."""
    weights = np.exp(log_weights - log_weights.max())
    running = weights.cumsum()
    at = int(running.searchsorted(uniform * running[-1], side="right"))
    return at if at < len(weights) and weights[at] > 0 else int(np.flatnonzero(weights)[-1])
