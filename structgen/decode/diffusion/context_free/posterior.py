"""The mean-field law of one canvas, restricted to the canvases of a grammar that may recur."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.diffusion.class_posterior import ClassPosterior, drawn
from structgen.decode.diffusion.context_free.chart import reduced
from structgen.decode.diffusion.context_free.plan import ALWAYS
from structgen.decode.diffusion.context_free.walk import NO_LABEL, walk
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import Completion
from structgen.errors import GenerationError, LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.chart import Chart
    from structgen.decode.diffusion.context_free.language import ContextFreeLanguage
    from structgen.decode.diffusion.posterior import Canvas, Tail

__all__ = ["ContextFreePosterior"]


@final
class ContextFreePosterior(ClassPosterior):
    """See ``CanvasPosterior``, and ``ContextFreeLanguage`` for what is exact of an ambiguous grammar.

    Masses and marginals of one that may be ambiguous raise ``GenerationError``, unless its ways are to be counted.

    Attributes:
        counts_ways: masses and marginals count a canvas as often as the grammar reads it, which may be more than once.
    """

    def __init__(self, language: ContextFreeLanguage, law: MeanField, tail: Tail) -> None:
        super().__init__(law, tail, language.vocabulary, language.token_classes)
        self.language = language
        self.counts_ways = not language.is_unambiguous
        self._sum: Chart | None = None
        self._around: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def log_z(self) -> float:
        """See ``CanvasPosterior.log_z``.

        Raises:
            GenerationError: the grammar may be ambiguous, and nobody asked for ways to be counted.
        """
        self._check_ambiguity()
        return self._total(self._sums(), self._tail_scores(self.law.canvas, self._eos_sums()))

    def best(self) -> Completion:
        """See ``CanvasPosterior.best``."""
        maxima = self.scores.maxima()
        chart = self.language.chart(self._weights(maxima, is_max=True), is_max=True)
        ends = chart.ends + self._tail_scores(self.law.canvas, maxima[:, self.language.eos_class])
        end = int(ends.argmax())
        self._check(float(ends[end]))
        labels = walk(chart, end, lambda through: int(through.argmax()))
        tokens = self._fixed_and_tail(end)
        rows, classes = self._choose(tokens, labels, lambda row, of: int(maxima[row, of].argmax()))
        tokens[tokens == FREE] = self.scores.best(rows, classes)
        return Completion(tokens, float(ends[end]))

    def draw(self, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasPosterior.draw``.

        Of a grammar that may be ambiguous a way is drawn, and kept with a chance of one over the ways of its canvas.

        Raises:
            LimitExceeded: more than ``most_draws`` ways were not kept.
        """
        chart = self._sums()
        ends = chart.ends + self._tail_scores(self.law.canvas, self._eos_sums())
        self._check(float(ends.max()))
        log_sums = self.scores.log_sums()
        most = self.language.most_draws
        for _ in range(most):
            end = drawn(ends, generator.random())
            labels = walk(chart, end, lambda through: drawn(through, generator.random()))
            tokens = self._fixed_and_tail(end)
            rows, classes = self._choose(tokens, labels, lambda row, of: drawn(log_sums[row, of], generator.random()))
            tokens[tokens == FREE] = self.scores.draw(rows, classes, generator.random(len(rows)))
            if self.language.is_unambiguous or generator.random() * self._ways(tokens[:end]) < 1.0:
                return Completion(tokens, self._log_prob(tokens, end))
        raise LimitExceeded(
            "diffusion decoding: draw from an ambiguous grammar",
            limit="most_draws",
            maximum=most,
            evidence="canvases are read in so many ways that none was kept",
            remedy="make the grammar less ambiguous, or take the most probable canvas",
        )

    def clamped(self, canvas: Canvas, /) -> float:
        """See ``CanvasPosterior.clamped``; raises as ``log_z``."""
        self._check_ambiguity()
        law = self.law
        if np.any((law.canvas != FREE) & (canvas != law.canvas)):
            return -np.inf
        weights = self._weights(self.scores.log_sums(), is_max=False)
        for slot in np.flatnonzero((canvas != FREE) & (law.canvas == FREE)).tolist():
            weights[slot] = self.language.fixed_weights(int(canvas[slot]), is_max=False)
        chart = self.language.chart(weights, is_max=False)
        return self._total(chart, self._tail_scores(canvas, self._eos_sums()))

    def _sums(self) -> Chart:
        if self._sum is None:
            self._sum = self.language.chart(self._weights(self.scores.log_sums(), is_max=False), is_max=False)
        return self._sum

    def _eos_sums(self) -> NDArray[np.float64]:
        return self.scores.log_sums()[:, self.language.eos_class]

    def _total(self, chart: Chart, tail: NDArray[np.float64]) -> float:
        return float(reduced((chart.ends + tail)[:, None], is_max=False)[0])

    def _weights(self, scores: NDArray[np.float64], *, is_max: bool) -> NDArray[np.float64]:
        """Log weight of every label in every slot, from those of the classes in every free slot."""
        language, law = self.language, self.law
        made = np.empty((law.slots, len(language.plan.labels)))
        if len(law.free):
            if len(language.label_starts):  # a grammar of the empty text alone has no labels
                made[law.free, ALWAYS + 1 :] = _by_label(scores, language, is_max=is_max)
            made[law.free, ALWAYS] = 0.0
        for slot in np.flatnonzero(law.canvas != FREE).tolist():
            made[slot] = language.fixed_weights(int(law.canvas[slot]), is_max=is_max)
        return made

    def _tail_scores(self, canvas: Canvas, eos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log weight of a tail that begins at each boundary, float64 ``[slots + 1]``.

        Args:
            canvas: that of the law, or one that fixes more.
            eos: log weight of EOS in each free slot of the law.
        """
        law = self.law
        first = np.zeros(law.slots)
        first[law.free] = eos
        if not self.language.vocabulary.eos:
            first[:] = -np.inf
        for slot in np.flatnonzero(canvas != FREE).tolist():
            is_eos = self.language.class_at(int(canvas[slot])) == self.language.eos_class
            first[slot] = 0.0 if is_eos else -np.inf
        others = np.where((canvas == FREE) & np.isfinite(first), 0.0, first) if self.tail == "free" else first
        after = np.append(np.cumsum(others[::-1])[::-1], 0.0)
        return np.append(first + after[1:], 0.0)

    def _factors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._around is None:
            self._check_ambiguity()
            language, law, chart = self.language, self.law, self._sums()
            eos = self._eos_sums()
            ends = chart.ends + self._tail_scores(law.canvas, eos)
            total = float(reduced(ends[:, None], is_max=False)[0])
            self._check(total)
            ended = np.exp(ends - total)
            labels = chart.label_shares(ended)
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(labels > 0, np.log(labels) - chart.weights, -np.inf)
            each[:, ALWAYS] = -np.inf
            largest = np.maximum(each.max(axis=1, keepdims=True), -1e300)
            with np.errstate(divide="ignore"):
                around = np.log(np.exp(each - largest) @ language.counts) + largest
            inside = np.concatenate([[0.0], np.cumsum(ended[:-2])]) if law.slots else np.zeros(0)
            tail = np.zeros(law.slots)
            with np.errstate(divide="ignore"):
                if self.tail == "free":
                    tail = np.where(law.canvas == FREE, inside, 0.0)
                    first = np.log(ended[:-1])
                else:
                    first = np.log(ended[:-1] + inside)
            of_eos = np.zeros(law.slots)
            of_eos[law.free] = np.where(np.isfinite(eos), eos, 0.0)  # without EOS nothing ends before the canvas
            around[:, language.eos_class] = first - of_eos
            self._around = around, tail
        return self._around

    def _ways(self, tokens: NDArray[np.int32]) -> float:
        """In how many ways the network reads some tokens."""
        weights = np.empty((len(tokens), len(self.language.plan.labels)))
        for slot, token in enumerate(tokens.tolist()):
            weights[slot] = self.language.fixed_weights(token, is_max=False)
        return float(np.exp(self.language.chart(weights, is_max=False).ends[len(tokens)]))

    def _fixed_and_tail(self, end: int) -> NDArray[np.int32]:
        """The canvas with its tail filled; other free slots stay free."""
        tokens = self.law.canvas.copy()
        if self.tail == "free":
            rest = tokens[end + 1 :]
            rest[rest == FREE] = (self._filler or (FREE,))[0]
        return tokens

    def _classes_of(self, label: int) -> NDArray[np.int32]:
        classes = (self.language.eos_class,) if label == NO_LABEL else self.language.plan.labels[label]
        return np.array(classes, dtype=np.int32)

    def _log_prob(self, tokens: NDArray[np.int32], end: int) -> float:
        each = self.law.log_prob_of(tokens)
        if self.tail == "free":
            each[end + 1 :] = 0.0
        return float(each.sum())

    def _check(self, total: float) -> None:
        if not np.isfinite(total):
            raise GenerationError(
                "diffusion decoding",
                "no completion of the canvas spells a member of the grammar",
                evidence=f"{self.law.slots} slots, of which {len(self.law.free)} are free; the shortest member takes "
                f"{self.language.shortest}",
                remedy="give the canvas more slots, or check the tokens that are fixed in it",
            )

    def _check_ambiguity(self) -> None:
        if self.counts_ways and self.language.ambiguity == "refused":
            raise GenerationError(
                "diffusion decoding",
                "masses and marginals of this grammar may count a canvas more than once",
                evidence="its next byte does not always decide how to read on, so it may be ambiguous",
                remedy="use best() or draw(), which are exact; make the grammar deterministic; or pass "
                'ambiguity="counted" where it is known to be unambiguous, or counting is what you want',
            )


def _by_label(scores: NDArray[np.float64], language: ContextFreeLanguage, *, is_max: bool) -> NDArray[np.float64]:
    """Log weights of the labels that have classes, for each row of scores of classes.

    Shares of one law are at least exp(-80) over the size of the vocabulary of its largest, so that none is lost.
    """
    spread = scores[:, language.label_classes]
    if is_max:
        maxima: NDArray[np.float64] = np.maximum.reduceat(spread, language.label_starts, axis=1)
        return maxima
    largest = scores.max(axis=1, keepdims=True)
    sums = np.add.reduceat(np.exp(spread - largest), language.label_starts, axis=1)
    with np.errstate(divide="ignore"):
        logs: NDArray[np.float64] = np.log(sums) + largest
    return logs
