"""Canvases of a grammar that may recur: the exact posterior by charts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final, get_args

import numpy as np

from structgen.decode.diffusion.byte_automaton import check_finite_checks
from structgen.decode.diffusion.context_free.chart import NativeChart
from structgen.decode.diffusion.context_free.plan import ALWAYS, ENDING, plan_of
from structgen.decode.diffusion.context_free.posterior import ContextFreePosterior
from structgen.decode.diffusion.context_free.token_network import DEAD_CLASS, MOST_EFFECTS, lift
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.mask_words import mask_words
from structgen.engine.network import MOST_STATES, network_of
from structgen.errors import LimitExceeded
from structgen.models.diffusion.token_classes import TokenClasses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.plan import Plan
    from structgen.decode.diffusion.posterior import Canvas, Tail
    from structgen.engine.constraint import Constraint

__all__ = ["MOST_BYTES", "MOST_DRAWS", "MOST_STEPS", "Ambiguity", "ContextFreeLanguage"]

Ambiguity: TypeAlias = Literal["refused", "counted"]

MOST_STEPS: Final = 5_000_000_000
"""Elementary steps of one chart: products of two masses."""

MOST_BYTES: Final = 1 << 30
"""Memory of one chart."""

MOST_DRAWS: Final = 10_000
"""Ways that are drawn for one completion of an ambiguous grammar."""


@final
class ContextFreeLanguage:
    """The canvases that spell a member of any grammar, EOS tail included; immutable.

    What is completable, which tokens each slot may hold, the most probable completion and draws are exact for every
    grammar.  Masses and marginals are sums over the *ways* in which the network of the grammar reads a canvas, and so
    they are exact where a canvas has one way at most.  This is proved for grammars whose next byte always decides
    (``is_unambiguous``), JSON among them.  For others it is not known: an ambiguous grammar would count a canvas as
    often as it can be read, and no chart of it can tell.  They are refused, unless ``ambiguity="counted"`` says that
    counting ways is what is wanted, or that the grammar is known to be unambiguous all the same.

    Args:
        constraint: what the canvases spell.
        ambiguity: whether masses and marginals of grammars that may be ambiguous are refused, or count ways.
        most_states: states of the network over bytes.
        most_effects: entries of the tables of what tokens do.
        most_steps: elementary steps of one chart.
        most_bytes: memory of one chart.
        most_draws: ways that are drawn for one completion of a grammar that may be ambiguous.

    Attributes:
        vocabulary: of the slots.
        shortest: how many slots the shortest member takes.
        is_unambiguous: every canvas has one way at most.

    Raises:
        GrammarError: values must differ from each other, which no network decides.
        LimitExceeded: the network has more states or effects than are kept.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        constraint: Constraint,
        *,
        ambiguity: Ambiguity = "refused",
        most_states: int = MOST_STATES,
        most_effects: int = MOST_EFFECTS,
        most_steps: int = MOST_STEPS,
        most_bytes: int = MOST_BYTES,
        most_draws: int = MOST_DRAWS,
    ) -> None:
        if ambiguity not in get_args(Ambiguity):
            raise ValueError(f"ambiguity is {ambiguity!r}; give one of {', '.join(get_args(Ambiguity))}")
        for name, limit in (
            ("most_states", most_states),
            ("most_effects", most_effects),
            ("most_steps", most_steps),
            ("most_bytes", most_bytes),
            ("most_draws", most_draws),
        ):
            if limit < 1:
                raise ValueError(f"{name} must be at least 1; found {limit}")
        check_finite_checks(constraint)
        network = network_of(constraint, most_states=most_states)
        lifted = lift(network, constraint.vocabulary, most_effects=most_effects)
        self.vocabulary = constraint.vocabulary
        self.ambiguity = ambiguity
        self.is_unambiguous = network.is_deterministic
        self.most_draws = most_draws
        self.plan: Plan = plan_of(lifted)
        self.class_of = lifted.class_of
        self.classes = lifted.classes
        self.eos_class = lifted.eos_class
        self._most_steps, self._most_bytes = most_steps, most_bytes
        self.counts = np.zeros((len(self.plan.labels), lifted.classes))
        for label, classes in enumerate(self.plan.labels):
            np.add.at(self.counts[label], list(classes), 1.0)
        self.token_classes = TokenClasses(self.class_of, self.classes)
        self.sizes = self.token_classes.sizes
        self.counts[:, self.sizes == 0] = 0.0
        labelled = [classes for classes in self.plan.labels if classes]  # all but ALWAYS, the first
        self.label_classes = np.array([of for classes in labelled for of in classes], dtype=np.int32)
        self.label_starts = np.cumsum([0, *map(len, labelled)])[: len(labelled)]
        with np.errstate(divide="ignore"):
            self.log_counts = np.log(self.counts)
        self.shortest = _shortest(self.plan)

    def posterior(self, law: MeanField, /, *, tail: Tail = "free") -> ContextFreePosterior:
        """See ``CanvasLanguage.posterior``."""
        return ContextFreePosterior(self, law, tail)

    def completable(self, canvas: Canvas, /) -> bool:
        """See ``CanvasLanguage.completable``."""
        return bool(self._ends(self._anything(canvas), canvas).any())

    def masks(self, canvas: Canvas, /) -> NDArray[np.int32]:
        """See ``CanvasLanguage.masks``."""
        words = np.zeros((len(canvas), (self.vocabulary.size + 31) // 32), dtype=np.int32)
        chart = self._anything(canvas)
        ends = self._ends(chart, canvas)
        if not ends.any():
            return words
        for slot, classes in enumerate(self._allowed(chart, ends)):
            is_free = canvas[slot] == FREE
            held = classes[self.class_of] if is_free else np.arange(self.vocabulary.size) == canvas[slot]
            words[slot] = mask_words(held)
        return words

    def forced(self, canvas: Canvas, /) -> Canvas:
        """See ``CanvasLanguage.forced``."""
        filled = canvas.copy()
        chart = self._anything(canvas)
        ends = self._ends(chart, canvas)
        if not ends.any():
            return filled
        allowed = self._allowed(chart, ends)
        single = (allowed @ self.sizes == 1) & (canvas == FREE)
        for slot in np.flatnonzero(single).tolist():
            filled[slot] = np.flatnonzero(self.class_of == allowed[slot].argmax())[0]
        last = int(np.flatnonzero(ends)[-1])  # where the longest member ends; an EOS, which there is, follows it
        filled[last + 1 :] = np.where(canvas[last + 1 :] == FREE, (*self.vocabulary.eos, FREE)[0], canvas[last + 1 :])
        return filled

    def fixed_weights(self, token: int, *, is_max: bool) -> NDArray[np.float64]:
        """Log weights of all labels in a slot that holds ``token``: how many ways it takes part in each."""
        of = self.class_at(token)
        made: NDArray[np.float64] = self.log_counts[:, of]
        made = np.where(made >= 0, 0.0, -np.inf) if is_max else made.copy()
        made[ALWAYS] = 0.0
        return made

    def class_at(self, token: int) -> int:
        """The class of what a fixed slot holds; ids that the vocabulary does not have are dead."""
        return int(self.class_of[token]) if 0 <= token < len(self.class_of) else DEAD_CLASS

    def chart(self, weights: NDArray[np.float64], *, is_max: bool) -> NativeChart:
        """The chart of one canvas.

        Raises:
            LimitExceeded: it takes more steps or memory than is allowed.
        """
        slots = len(weights)
        subject = f"diffusion decoding: chart of {slots} slots"
        remedy = "decode in blocks of fewer slots, narrow the grammar, or allow more"
        if self.plan.steps(slots) > self._most_steps:
            raise LimitExceeded(
                subject,
                limit="most_steps",
                maximum=self._most_steps,
                evidence=f"it takes up to {self.plan.steps(slots)} steps",
                remedy=remedy,
            )
        needed = self.plan.bytes(slots)
        if needed > self._most_bytes:
            raise LimitExceeded(
                subject,
                limit="most_bytes",
                maximum=self._most_bytes,
                evidence=f"it takes {needed} bytes",
                remedy=remedy,
            )
        return NativeChart(self.plan, weights, is_max=is_max)

    def _anything(self, canvas: Canvas) -> NativeChart:
        """The chart of a canvas whose free slots may hold anything."""
        possible: NDArray[np.float64] = np.where(self.counts.any(axis=1), 0.0, -np.inf)
        possible[ALWAYS] = 0.0
        weights = np.tile(possible, (len(canvas), 1))
        for slot in np.flatnonzero(canvas != FREE).tolist():
            weights[slot] = self.fixed_weights(int(canvas[slot]), is_max=True)
        return self.chart(weights, is_max=True)

    def _ends(self, chart: NativeChart, canvas: Canvas) -> NDArray[np.float64]:
        """Whether a member may end at each boundary, 1 or 0."""
        is_eos = np.full(len(canvas), bool(self.vocabulary.eos), dtype=bool)
        for slot in np.flatnonzero(canvas != FREE).tolist():
            is_eos[slot] = self.class_at(int(canvas[slot])) == self.eos_class
        tail = np.append(np.logical_and.accumulate(is_eos[::-1])[::-1], True)
        ends: NDArray[np.float64] = (np.isfinite(chart.ends) & tail).astype(np.float64)
        return ends

    def _allowed(self, chart: NativeChart, ends: NDArray[np.float64]) -> NDArray[np.bool_]:
        """The classes that each slot may hold, bool ``[slots, classes]``."""
        allowed: NDArray[np.bool_] = np.matmul(chart.label_shares(ends) > 0, self.counts > 0)
        allowed[:, self.eos_class] = np.cumsum(ends[:-1]) > 0
        return allowed


def _shortest(plan: Plan) -> int:
    """The fewest tokens of a member: distances along the tables of a chart."""
    far = np.inf
    cells = np.full(plan.cells, far)
    cells[plan.ending_cells], cells[plan.leaving_cells] = 0.0, 1.0
    arrivals = np.full(plan.arrivals, far)
    of_cell = np.repeat(np.arange(plan.cells), np.diff(plan.moves.begin))
    of_arrival = np.repeat(np.arange(plan.arrivals), np.diff(plan.contractions.begin))
    of_part = np.repeat(np.arange(len(plan.parts)), np.diff(plan.parts.begin))
    of_outlet = np.repeat(np.arange(len(plan.outlets)), np.diff(plan.outlets.begin))
    shared_outlets = int(plan.outlet_begin[plan.shared])
    composed = np.flatnonzero(plan.outlet_of_cell >= 0)
    takes = (plan.outlet_of_cell[composed] < shared_outlets).astype(np.float64)  # tokens that lead to the call
    while True:
        before = cells.copy(), arrivals.copy()
        np.minimum.at(cells, of_cell, cells[plan.moves.first] + 1)
        np.minimum.at(arrivals, of_arrival, cells[plan.contractions.first])
        parts = np.full(len(plan.parts), far)
        np.minimum.at(parts, of_part, arrivals[plan.parts.first])
        outlets = np.full(len(plan.outlets), far)
        after = np.where(plan.outlets.second >= 0, cells[plan.outlets.second], 0.0)
        np.minimum.at(outlets, of_outlet, parts[plan.outlets.first] + after)
        cells[composed] = np.minimum(cells[composed], outlets[plan.outlet_of_cell[composed]] + takes)
        if np.array_equal(before[0], cells) and np.array_equal(before[1], arrivals):
            return int(cells[plan.cell(0, ENDING)])
