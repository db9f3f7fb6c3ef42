"""Canvases of a grammar that may be recursive: the exact posterior by charts.

``ContextFreeLanguage`` is built once for a constraint; ``ContextFreePosterior`` is the mean-field distribution of one
canvas, restricted to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final, get_args

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.class_posterior import ClassPosterior, class_masks, sampled_index
from structgen.decode.diffusion.context_free.chart import NO_LABEL, Chart, reduced, shortest_output, walk_chart
from structgen.decode.diffusion.context_free.plan import ALWAYS, ENDING, plan_of
from structgen.decode.diffusion.context_free.token_effects import MAX_EFFECTS
from structgen.decode.diffusion.context_free.token_network import DEAD_CLASS, lift
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import Completion
from structgen.decode.diffusion.token_automaton import refuse_infinite_checks
from structgen.engine.mask import empty_masks
from structgen.engine.network import MAX_STATES, network_of
from structgen.errors import GenerationError, LimitExceeded
from structgen.grammar.limits import counted, spend_steps, steps_left
from structgen.models.protocol.diffusion import TokenClasses

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.plan import Plan
    from structgen.decode.diffusion.posterior import Canvas, Tail
    from structgen.engine.constraint import Constraint

__all__ = ["MAX_BYTES", "MAX_SAMPLES", "MAX_STEPS", "Ambiguity", "ContextFreeLanguage", "ContextFreePosterior"]

Ambiguity: TypeAlias = Literal["refused", "counted"]

MAX_STEPS: Final = 5_000_000_000
"""Limit on the elementary steps of one chart: products of two masses."""

MAX_BYTES: Final = 1 << 30
"""Limit on the memory of one chart."""

MAX_SAMPLES: Final = 10_000
"""Limit on the parses that are sampled for one completion of an ambiguous grammar."""

_STEPS_OF_WALK: Final = 1_000
"""To choose the way through a slot, by Python code."""


@final
class ContextFreeLanguage:
    """The canvases that spell a string of any grammar, EOS tail included; immutable.

    Completability, token masks of slots, the most probable completion and samples are exact for every grammar. Masses
    and marginals are sums over *parses* of a canvas by the network of the grammar, so they are exact if every canvas
    has at most one parse. This is proved for grammars whose next byte always decides the parse (``is_unambiguous``),
    JSON among them. For others it is unknown, and a chart cannot decide it: an ambiguous grammar would count a canvas
    once for each parse. So masses and marginals of such grammars are refused, unless ``ambiguity="counted"`` states
    that parses shall be counted or that the grammar is known to be unambiguous.

    Args:
        constraint: its grammar defines the canvases.
        ambiguity: whether masses and marginals of possibly ambiguous grammars are refused, or count parses.
        max_states: limit on the states of the network over bytes.
        max_effects: limit on the entries of the tables of token effects.
        max_steps: limit on the elementary steps of one chart.
        max_bytes: limit on the memory of one chart.
        max_draws: limit on the parses that are sampled for one completion of a possibly ambiguous grammar.

    Attributes:
        vocabulary: the tokens of the slots.
        shortest: how many slots the shortest string takes.
        is_unambiguous: whether every canvas is known to have at most one parse.

    Raises:
        GrammarError: the grammar has token budgets, values that must differ, or labels that must decode.
        LimitExceeded: the network has too many states or effects, or takes more than ``Limits.canvas_steps``.
        ValueError: an argument is out of range.
    """

    def __init__(  # noqa: PLR0913  public: four limits, each a keyword with a default
        self,
        constraint: Constraint,
        *,
        ambiguity: Ambiguity = "refused",
        max_states: int = MAX_STATES,
        max_effects: int = MAX_EFFECTS,
        max_steps: int = MAX_STEPS,
        max_bytes: int = MAX_BYTES,
        max_draws: int = MAX_SAMPLES,
    ) -> None:
        if ambiguity not in get_args(Ambiguity):
            raise ValueError(f"ambiguity must be one of {', '.join(get_args(Ambiguity))}; found {ambiguity!r}")
        for name, limit in (
            ("max_states", max_states),
            ("max_effects", max_effects),
            ("max_steps", max_steps),
            ("max_bytes", max_bytes),
            ("max_draws", max_draws),
        ):
            if limit < 1:
                raise ValueError(f"{name} must be at least 1; found {limit}")
        refuse_infinite_checks(constraint)
        with counted(constraint.limits, limit="canvas_steps"):
            network = network_of(constraint, max_states=max_states)
            lifted = lift(network, constraint.vocabulary, max_effects=max_effects)
            self.plan: Plan = plan_of(lifted)
            spend_steps(len(self.plan.labels) * lifted.classes // 16, "charts of a grammar")
        self.vocabulary = constraint.vocabulary
        self.ambiguity = ambiguity
        self.is_unambiguous = network.is_deterministic
        self.max_draws = max_draws
        self.class_of = lifted.class_of
        self.classes = lifted.classes
        self.eos_class = lifted.eos_class
        self._max_steps, self._max_bytes = max_steps, max_bytes
        self.counts = np.zeros((len(self.plan.labels), lifted.classes))
        for label, classes in enumerate(self.plan.labels):
            np.add.at(self.counts[label], list(classes), 1.0)
        self.token_classes = TokenClasses(self.class_of, self.classes)
        self.counts[:, self.token_classes.sizes == 0] = 0.0
        self._has_tokens = self.counts.any(axis=1)
        # Weights of labels are made from those of classes, and marginals the other way round.
        self._steps_of_slot = len(self.plan.label_classes) // 8 + len(self.plan.labels) // 2 + lifted.classes // 4 + 1
        self.shortest = shortest_output(self.plan)

    def posterior(self, distribution: MeanField, /, *, tail: Tail = "free") -> ContextFreePosterior:
        """See ``CanvasLanguage.posterior``."""
        return ContextFreePosterior(self, distribution, tail)

    def completable(self, canvas: Canvas, /) -> bool:
        """See ``CanvasLanguage.completable``."""
        return bool(self.possible(canvas)[0].any())

    def masks(self, canvas: Canvas, /) -> NDArray[np.int32]:
        """See ``CanvasLanguage.masks``."""
        ends, labels = self.possible(canvas)
        if not ends.any():
            return empty_masks(self.vocabulary, len(canvas))
        return class_masks(self.vocabulary, self.class_of, self._allowed(labels, ends), canvas)

    def forced(self, canvas: Canvas, /) -> Canvas:
        """See ``CanvasLanguage.forced``."""
        filled = canvas.copy()
        ends, labels = self.possible(canvas)
        if not ends.any():
            return filled
        allowed = self._allowed(labels, ends)
        single = (allowed @ self.token_classes.sizes == 1) & (canvas == FREE)
        for slot in np.flatnonzero(single).tolist():
            filled[slot] = np.flatnonzero(self.class_of == allowed[slot].argmax())[0]
        last = int(np.flatnonzero(ends)[-1])  # where the longest string ends; an EOS must follow it
        filled[last + 1 :] = np.where(canvas[last + 1 :] == FREE, (*self.vocabulary.eos, FREE)[0], canvas[last + 1 :])
        return filled

    def fixed_weights(self, tokens: NDArray[np.int32], *, is_max: bool) -> NDArray[np.float64]:
        """Log weights of all labels in slots that hold ``tokens``: log of how often each label contains their class."""
        counts = self.counts.T[self.class_at(tokens)]
        with np.errstate(divide="ignore"):
            weights: NDArray[np.float64] = np.log(np.minimum(counts, 1.0) if is_max else counts)
        weights[:, ALWAYS] = 0.0
        return weights

    def class_at(self, tokens: NDArray[np.int32] | int) -> NDArray[np.int32]:
        """The classes of the tokens of fixed slots; ids outside the vocabulary are dead."""
        known = (tokens >= 0) & (tokens < len(self.class_of))
        return np.where(known, self.class_of[np.where(known, tokens, 0)], DEAD_CLASS)

    def chart(self, weights: NDArray[np.float64], *, is_max: bool) -> Chart:
        """The chart of one canvas.

        Raises:
            LimitExceeded: the chart takes more steps or memory than the limits allow, or with the other charts of its
                canvas more than ``Limits.canvas_steps``.
        """
        self._check_size(len(weights))
        chart = Chart(self.plan, weights, is_max=is_max, max_steps=steps_left(MAX_STEPS))
        self._spend(len(weights), chart.steps + len(weights) * self._steps_of_slot)
        return chart

    def label_shares(self, chart: Chart, ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """``Chart.label_shares``, counted.

        Raises:
            LimitExceeded: the charts of the canvas take more than ``Limits.canvas_steps``.
        """
        shares, steps = chart.counted_shares(ends, steps_left(MAX_STEPS))
        self._spend(len(chart.weights), steps)
        return np.zeros(chart.weights.shape) if shares is None else shares

    def walk(self, chart: Chart, end: int, choose: Callable[[NDArray[np.float64]], int]) -> NDArray[np.int32]:
        """``walk_chart``, counted.

        Raises:
            LimitExceeded: the charts of the canvas take more than ``Limits.canvas_steps``.
        """
        self._spend(len(chart.weights), _STEPS_OF_WALK * end)
        return walk_chart(chart, end, choose)

    def possible(self, canvas: Canvas) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """What some completion of a canvas has, whose free slots may hold any token.

        Returns:
            bool ``[slots + 1]``, where a string may end, and bool ``[slots, labels]``.

        Raises:
            LimitExceeded: as ``chart``.
        """
        self._check_size(len(canvas))
        allowed = np.where((canvas == FREE)[:, None], self._has_tokens, self.counts.T[self.class_at(canvas)] > 0)
        allowed[:, ALWAYS] = True
        is_eos = np.where(canvas == FREE, bool(self.vocabulary.eos), self.class_at(canvas) == self.eos_class)
        tail = np.append(np.logical_and.accumulate(is_eos[::-1])[::-1], True)
        steps, ends, labels = _native.possible_parses(
            self.plan.native,
            allowed.astype(np.uint8),
            tail.astype(np.uint8),
            self.plan.cell(0, ENDING),
            steps_left(MAX_STEPS),
        )
        self._spend(len(canvas), steps + len(canvas) * self._steps_of_slot)
        if ends is None or labels is None:
            return np.zeros(len(tail), dtype=bool), np.zeros(allowed.shape, dtype=bool)
        return ends.astype(bool), labels.astype(bool)

    def classes_in(self, labels: NDArray[np.generic]) -> NDArray[np.float64]:
        """The sum over the labels that contain each class, float64 ``[slots, classes]``; 0 for a class without tokens.

        Args:
            labels: a number for each label in each slot, ``[slots, labels]``.
        """
        made = _native.class_sums(
            self.plan.label_begin, self.plan.label_classes, labels.astype(np.float64), self.classes
        )
        made[:, self.token_classes.sizes == 0] = 0.0
        return made

    def _check_size(self, slots: int) -> None:
        """Raise ``LimitExceeded`` where a chart may take more steps or memory than this language allows."""
        steps, size = self.plan.steps(slots), self.plan.bytes(slots)
        for limit, maximum, needed, evidence in (
            ("max_steps", self._max_steps, steps, f"it takes up to {steps} steps"),
            ("max_bytes", self._max_bytes, size, f"it takes {size} bytes"),
        ):
            if needed > maximum:
                raise LimitExceeded(
                    f"diffusion decoding: chart of {slots} slots",
                    limit=limit,
                    maximum=maximum,
                    evidence=evidence,
                    remedy="decode in blocks of fewer slots, narrow the grammar, or raise the limit",
                )

    def _spend(self, slots: int, steps: int) -> None:
        spend_steps(
            steps,
            f"diffusion decoding: charts of a canvas of {slots} slots",
            evidence=f"the network has {self.plan.states} states",
            remedy="give the canvas fewer slots or SMC fewer particles, commit more slots in a step, narrow the "
            "grammar, or raise Limits(canvas_steps=...)",
        )

    def _allowed(self, labels: NDArray[np.bool_], ends: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The classes that each slot may hold, bool ``[slots, classes]``."""
        allowed = self.classes_in(labels) > 0
        allowed[:, self.eos_class] = np.cumsum(ends[:-1]) > 0
        return allowed


@final
class ContextFreePosterior(ClassPosterior):
    """See ``CanvasPosterior``, and ``ContextFreeLanguage`` for what is exact in an ambiguous grammar.

    Masses and marginals of a possibly ambiguous grammar raise ``GenerationError`` unless its parses are counted.

    Attributes:
        counts_ways: whether masses and marginals may count a canvas more than once, once for each parse.
    """

    def __init__(self, language: ContextFreeLanguage, distribution: MeanField, tail: Tail) -> None:
        super().__init__(distribution, tail, language.vocabulary, language.token_classes)
        self.language = language
        self.counts_ways = not language.is_unambiguous
        self._sum: Chart | None = None
        self._around: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def log_z(self) -> float:
        """See ``CanvasPosterior.log_z``.

        Raises:
            GenerationError: the grammar may be ambiguous, and ``ambiguity`` is ``"refused"``.
        """
        self._check_ambiguity()
        return self._total(self._sums(), self._tail_scores(self.distribution.canvas, self._eos_sums()))

    def best(self) -> Completion:
        """See ``CanvasPosterior.best``."""
        maxima = self.scores.maxima()
        chart = self.language.chart(self._weights(maxima, is_max=True), is_max=True)
        ends = chart.ends + self._tail_scores(self.distribution.canvas, maxima[:, self.language.eos_class])
        end = int(ends.argmax())
        self._check(float(ends[end]))
        labels = self.language.walk(chart, end, lambda through: int(through.argmax()))
        return Completion(self._best_tokens(labels, self._after(end)), float(ends[end]))

    def draw(self, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasPosterior.draw``.

        For a possibly ambiguous grammar, samples a parse and accepts it with probability 1 / parses of its canvas.

        Raises:
            LimitExceeded: ``max_draws`` parses were rejected.
        """
        chart = self._sums()
        ends = chart.ends + self._tail_scores(self.distribution.canvas, self._eos_sums())
        self._check(float(ends.max()))
        max_draws = self.language.max_draws
        for _ in range(max_draws):
            end = sampled_index(ends, generator.random())
            labels = self.language.walk(chart, end, lambda through: sampled_index(through, generator.random()))
            in_tail = self._after(end)
            tokens = self._sampled_tokens(labels, in_tail, generator)
            if self.language.is_unambiguous or generator.random() * self._parses(tokens[:end]) < 1.0:
                return Completion(tokens, self._log_prob(tokens, in_tail))
        raise LimitExceeded(
            "diffusion decoding: draw from an ambiguous grammar",
            limit="max_draws",
            maximum=max_draws,
            evidence="the canvases have so many parses that none was accepted",
            remedy="make the grammar less ambiguous, or use the most probable canvas",
        )

    def clamped(self, canvas: Canvas, /) -> float:
        """See ``CanvasPosterior.clamped``; raises as ``log_z``."""
        self._check_ambiguity()
        distribution = self.distribution
        if np.any((distribution.canvas != FREE) & (canvas != distribution.canvas)):
            return -np.inf
        weights = self._weights(self.scores.log_sums(), is_max=False)
        filled = (canvas != FREE) & (distribution.canvas == FREE)
        weights[filled] = self.language.fixed_weights(canvas[filled], is_max=False)
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
        """Log weight of every label in every slot, from the scores of classes in every free slot."""
        language, distribution = self.language, self.distribution
        weights = language.fixed_weights(distribution.canvas, is_max=is_max)
        if len(distribution.free):
            # Every probability is at least exp(-80) / vocabulary size of the row's largest, so none underflows.
            made = _native.label_scores(
                language.plan.label_begin, language.plan.label_classes, np.ascontiguousarray(scores), is_max
            )
            weights[distribution.free, ALWAYS + 1 :] = made[:, ALWAYS + 1 :]
        return weights

    def _tail_scores(self, canvas: Canvas, eos: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log weight of a tail that begins at each boundary, float64 ``[slots + 1]``.

        Args:
            canvas: that of the distribution, or one that fixes more slots.
            eos: log weight of EOS in each free slot of the distribution.
        """
        distribution = self.distribution
        first = np.zeros(distribution.slots)
        first[distribution.free] = eos
        if not self.language.vocabulary.eos:
            first[:] = -np.inf
        is_eos = self.language.class_at(canvas) == self.language.eos_class
        first[canvas != FREE] = np.where(is_eos, 0.0, -np.inf)[canvas != FREE]
        others = np.where((canvas == FREE) & np.isfinite(first), 0.0, first) if self.tail == "free" else first
        after = np.append(np.cumsum(others[::-1])[::-1], 0.0)
        return np.append(first + after[1:], 0.0)

    def _factors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._around is None:
            self._check_ambiguity()
            language, distribution, chart = self.language, self.distribution, self._sums()
            eos = self._eos_sums()
            ends = chart.ends + self._tail_scores(distribution.canvas, eos)
            total = float(reduced(ends[:, None], is_max=False)[0])
            self._check(total)
            ended = np.exp(ends - total)
            labels = language.label_shares(chart, ended)
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(labels > 0, np.log(labels) - chart.weights, -np.inf)
            each[:, ALWAYS] = -np.inf
            largest = np.maximum(each.max(axis=1, keepdims=True), -1e300)
            with np.errstate(divide="ignore"):
                around = np.log(language.classes_in(np.exp(each - largest))) + largest
            inside = np.concatenate([[0.0], np.cumsum(ended[:-2])]) if distribution.slots else np.zeros(0)
            tail = np.zeros(distribution.slots)
            with np.errstate(divide="ignore"):
                if self.tail == "free":
                    tail = np.where(distribution.canvas == FREE, inside, 0.0)
                    first = np.log(ended[:-1])
                else:
                    first = np.log(ended[:-1] + inside)
            of_eos = np.zeros(distribution.slots)
            # Without EOS nothing ends before the canvas does.
            of_eos[distribution.free] = np.where(np.isfinite(eos), eos, 0.0)
            around[:, language.eos_class] = first - of_eos
            self._around = around, tail
        return self._around

    def _parses(self, tokens: NDArray[np.int32]) -> float:
        """The number of parses of some tokens."""
        weights = self.language.fixed_weights(tokens, is_max=False)
        return float(np.exp(self.language.chart(weights, is_max=False).ends[len(tokens)]))

    def _after(self, end: int) -> NDArray[np.bool_]:
        """The slots after the EOS of a string of ``end`` tokens, bool ``[slots]``."""
        return np.arange(self.distribution.slots) > end

    def _classes_of(self, label: int) -> NDArray[np.int32]:
        classes = (self.language.eos_class,) if label == NO_LABEL else self.language.plan.labels[label]
        return np.array(classes, dtype=np.int32)

    @property
    def _needed(self) -> str:
        return f"the shortest string takes {self.language.shortest}"

    def _check_ambiguity(self) -> None:
        if self.counts_ways and self.language.ambiguity == "refused":
            raise GenerationError(
                "diffusion decoding",
                "masses and marginals of this grammar may count a canvas more than once",
                evidence="its next byte does not always decide the parse, so it may be ambiguous",
                remedy="use best() or draw(), which are exact; make the grammar deterministic; or pass "
                'ambiguity="counted" if it is known to be unambiguous, or parses shall be counted',
            )
