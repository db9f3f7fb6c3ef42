"""Canvases of a regular language: the exact posterior by messages along the slots.

``Chain`` is exact inference over the runs of an automaton, one edge for each slot.

Sources: T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061) for the maximum;
M. Dang and S. Ermon (2026, arXiv 2607.07026) for samples and marginals of the mean-field posterior. Here the run must
end in an accepting state, not merely in a live one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.class_posterior import ClassPosterior, class_masks
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import Completion
from structgen.decode.diffusion.token_automaton import FAR
from structgen.engine.mask import empty_masks
from structgen.grammar.limits import spend_steps, steps_left
from structgen.models.protocol.diffusion import TokenClasses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas, Tail
    from structgen.decode.diffusion.token_automaton import TokenAutomaton
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["Chain", "Edges", "RegularLanguage", "RegularPosterior"]


_UNBOUNDED: Final = 1 << 62


@final
class Edges:
    """The edges of an automaton, in the order of their sources; immutable.

    Args:
        states: number of states; state 0 is the start.
        labels: number of labels.
        final: bool ``[states]``: where a run may end.
        source, target, label: int32 ``[edges]``, in any order.

    Attributes:
        source, target, label: sorted by source.
        native: the same for native chains.
    """

    __slots__ = ("final", "label", "labels", "native", "source", "states", "target")

    def __init__(
        self,
        states: int,
        labels: int,
        final: NDArray[np.bool_],
        source: NDArray[np.int32],
        target: NDArray[np.int32],
        label: NDArray[np.int32],
    ) -> None:
        order = np.argsort(source, kind="stable")
        self.states, self.labels, self.final = states, labels, final
        self.source, self.target, self.label = source[order], target[order], label[order]
        self.native = _native.ChainEdges.of(self.source, self.target, self.label, final.astype(np.uint8), labels)


@final
class Chain:
    """The messages of one canvas in one semiring.

    Only states that runs from the start lead to are looked at, and of these only the ones from which enough slots are
    left to reach acceptance.

    Args:
        edges: the edges of the automaton.
        weights: log weight of every label in every slot, float64 ``[slots, labels]``.
        is_max: whether alternatives are maximised, not summed.
        max_steps: limit on ``steps``; a chain that needs more is left incomplete, and must not be read.

    Complexity: O(slots x edges of the states that are reached there).
    """

    __slots__ = ("_native", "edges", "is_max", "weights")

    def __init__(
        self, edges: Edges, weights: NDArray[np.float64], *, is_max: bool, max_steps: int = _UNBOUNDED
    ) -> None:
        self.edges = edges
        self.weights = weights
        self.is_max = is_max
        self._native = _native.Chain.of(edges.native, np.ascontiguousarray(weights), is_max, max_steps)

    @property
    def is_complete(self) -> bool:
        """Whether ``max_steps`` were enough; of another chain only ``steps`` may be read."""
        return self._native.is_complete

    @property
    def steps(self) -> int:
        """Elementary steps, except those of ``forward`` and ``label_masses``: each look at an edge takes a quarter."""
        return self._native.steps

    @property
    def forward_steps(self) -> int:
        """The steps that each of these takes."""
        return self._native.forward_steps

    @property
    def reached(self) -> NDArray[np.bool_]:
        """The states that are looked at after each number of slots, bool ``[slots + 1, states]``."""
        return self._native.reached().astype(bool)

    @property
    def backward(self) -> NDArray[np.float64]:
        """Log weight of all continuations of each reached state after each number of slots, ``[slots + 1, states]``."""
        return self._native.backward()

    @property
    def total(self) -> float:
        """Log weight of all runs, or of the best one."""
        return self._native.total

    def forward(self) -> NDArray[np.float64]:
        """Log weight of all prefixes to each reached state after each number of slots, ``[slots + 1, states]``."""
        return self._native.forward()

    def run(self, uniform: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Walk from the start to acceptance; some run must exist.

        Args:
            uniform: a number below 1 for each slot, to sample each edge by the weight of all runs through it; None
                takes the best run, of equal runs that of the first edges.

        Returns:
            The edge of every slot, ``[slots]``.
        """
        return self._native.run(np.zeros(0) if uniform is None else uniform)

    def label_masses(self) -> NDArray[np.float64]:
        """Log of the mass around each label: of all runs with the label in the slot, without the label's own weight.

        Returns:
            float64 ``[slots, labels]``, not normalised; of a label whose weight is minus infinity too little or none,
            for runs through it are not looked at.
        """
        return self._native.label_masses()


@final
class RegularLanguage:
    """The canvases that an automaton over the tokens of a vocabulary accepts, EOS tail included; immutable."""

    def __init__(self, automaton: TokenAutomaton, vocabulary: Vocabulary) -> None:
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.shortest = int(automaton.distance[0])
        labels = len(automaton.label_begin) - 1
        self.eos_label, self.tail_label = labels, labels + 1
        ending = np.flatnonzero(automaton.accepting).astype(np.int32)
        end = automaton.states  # the state after EOS
        self.edges = Edges(
            end + 1,
            labels + 2,
            np.append(automaton.accepting, True),
            np.concatenate([automaton.source, ending, [end]]).astype(np.int32),
            np.concatenate([automaton.target, np.full(len(ending) + 1, end)]).astype(np.int32),
            np.concatenate([automaton.label, np.full(len(ending), self.eos_label), [self.tail_label]]).astype(np.int32),
        )
        self.label_begin, self.label_class = automaton.label_begin, automaton.label_class
        # Which labels contain a class, EOS last; the tail contains EOS, too.
        spend_steps((labels + 2) * automaton.classes // 64, "diffusion decoding: tokens of a grammar")
        self.holds = np.zeros((labels + 2, automaton.classes), dtype=bool)
        self.holds[np.repeat(np.arange(labels), np.diff(automaton.label_begin)), automaton.label_class] = True
        self.holds[labels:, automaton.eos_class] = True
        self.token_classes = TokenClasses(automaton.class_of, automaton.classes)
        self.sizes = self.token_classes.sizes
        self.holds[:, self.sizes == 0] = False
        self._has_tokens = self.holds.any(axis=1)
        # The classes of all labels, those of EOS and tail among them.
        self._label_begin = np.append(automaton.label_begin, automaton.label_begin[-1] + np.arange(1, 3))
        self._label_class = np.append(automaton.label_class, [automaton.eos_class] * 2).astype(np.int32)
        # Weights of labels are made from those of classes, and marginals the other way round.
        self._steps_of_slot = len(self.label_class) // 8 + labels // 2 + automaton.classes // 4 + 1

    def chain(self, weights: NDArray[np.float64], *, is_max: bool) -> Chain:
        """The messages of one canvas.

        Raises:
            LimitExceeded: the chains of the canvas take more than ``Limits.canvas_steps``.
        """
        chain = Chain(self.edges, weights, is_max=is_max, max_steps=steps_left(_UNBOUNDED))
        self._spend(len(weights), chain.steps + len(weights) * self._steps_of_slot)
        return chain

    def label_masses(self, chain: Chain) -> NDArray[np.float64]:
        """``Chain.label_masses``, counted.

        Raises:
            LimitExceeded: the chains of the canvas take more than ``Limits.canvas_steps``.
        """
        self._spend(len(chain.weights), chain.forward_steps)
        return chain.label_masses()

    def _spend(self, slots: int, steps: int) -> None:
        spend_steps(
            steps,
            f"diffusion decoding: messages of a canvas of {slots} slots",
            evidence=f"the automaton has {self.edges.states} states and {len(self.edges.source)} edges",
            remedy="give the canvas fewer slots or SMC fewer particles, commit more slots in a step, narrow the "
            "grammar, or raise Limits(canvas_steps=...)",
        )

    def posterior(self, distribution: MeanField, /, *, tail: Tail = "free") -> RegularPosterior:
        """See ``CanvasLanguage.posterior``."""
        return RegularPosterior(self, distribution, tail)

    def completable(self, canvas: Canvas, /) -> bool:
        """See ``CanvasLanguage.completable``."""
        return self._possible(canvas) is not None

    def masks(self, canvas: Canvas, /) -> NDArray[np.int32]:
        """See ``CanvasLanguage.masks``."""
        labels = self._possible(canvas)
        if labels is None:
            return empty_masks(self.vocabulary, len(canvas))
        return class_masks(self.vocabulary, self.automaton.class_of, self.classes_in(labels) > 0, canvas)

    def forced(self, canvas: Canvas, /) -> Canvas:
        """See ``CanvasLanguage.forced``."""
        labels = self._possible(canvas)
        filled = canvas.copy()
        if labels is None:
            return filled
        allowed = self.classes_in(labels) > 0
        single = (allowed @ self.sizes == 1) & (canvas == FREE)
        for slot in np.flatnonzero(single).tolist():
            filled[slot] = self.automaton.members(int(allowed[slot].argmax()))[0]
        ended = labels[:, self.tail_label] & (labels.sum(axis=1) == 1) & (canvas == FREE)
        if ended.any():  # then there is an EOS: a tail follows one
            filled[ended] = self.vocabulary.eos[0]
        return filled

    def classes_in(self, labels: NDArray[np.generic]) -> NDArray[np.float64]:
        """The sum over the labels that contain each class, float64 ``[slots, classes]``; 0 for a class without tokens.

        Args:
            labels: a number for each label in each slot, ``[slots, labels]``.
        """
        made = _native.class_sums(self._label_begin, self._label_class, labels.astype(np.float64), len(self.sizes))
        made[:, self.sizes == 0] = 0.0
        return made

    def fixed_weights(self, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Log weights of all labels in slots that hold ``tokens``: 0 or minus infinity; all -inf for an invalid id."""
        known = (tokens >= 0) & (tokens < len(self.automaton.class_of))
        classes = self.automaton.class_of[np.where(known, tokens, 0)]
        return np.where(self.holds.T[classes] & known[:, None], 0.0, -np.inf)

    def _possible(self, canvas: Canvas) -> NDArray[np.bool_] | None:
        """The labels that each slot may have, where free slots may hold any token; None without completions.

        Raises:
            LimitExceeded: as ``chain``.
        """
        allowed = np.where((canvas == FREE)[:, None], self._has_tokens, self.fixed_weights(canvas) == 0.0)
        steps, labels, is_any = _native.possible_runs(
            self.edges.native, allowed.astype(np.uint8), steps_left(_UNBOUNDED)
        )
        self._spend(len(canvas), steps + len(canvas) * self._steps_of_slot)
        return labels.astype(bool) if labels is not None and is_any else None


@final
class RegularPosterior(ClassPosterior):
    """The mean-field distribution of one canvas, restricted to a regular language.  See ``CanvasPosterior``."""

    def __init__(self, language: RegularLanguage, distribution: MeanField, tail: Tail) -> None:
        super().__init__(distribution, tail, language.vocabulary, language.token_classes)
        self.language = language
        self._sum: Chain | None = None
        self._around: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def log_z(self) -> float:
        """See ``CanvasPosterior.log_z``."""
        return self._sums().total

    def best(self) -> Completion:
        """See ``CanvasPosterior.best``."""
        chain = self.language.chain(self._weights(self.scores.maxima(), is_max=True), is_max=True)
        self._check(chain.total)
        labels = self.language.edges.label[chain.run()]
        return Completion(self._best_tokens(labels, labels == self.language.tail_label), chain.total)

    def draw(self, generator: np.random.Generator, /) -> Completion:
        """See ``CanvasPosterior.draw``."""
        chain = self._sums()
        self._check(chain.total)
        labels = self.language.edges.label[chain.run(generator.random(self.distribution.slots))]
        in_tail = labels == self.language.tail_label
        tokens = self._sampled_tokens(labels, in_tail, generator)
        return Completion(tokens, self._log_prob(tokens, in_tail))

    def clamped(self, canvas: Canvas, /) -> float:
        """See ``CanvasPosterior.clamped``."""
        distribution = self.distribution
        weights = self._sums().weights.copy()
        fixed = (canvas != FREE) & (canvas != distribution.canvas)
        weights[fixed] = self.language.fixed_weights(canvas[fixed])
        weights[fixed & (distribution.canvas != FREE)] = -np.inf
        return self.language.chain(weights, is_max=False).total

    def _sums(self) -> Chain:
        if self._sum is None:
            self._sum = self.language.chain(self._weights(self.scores.log_sums(), is_max=False), is_max=False)
        return self._sum

    def _weights(self, scores: NDArray[np.float64], *, is_max: bool) -> NDArray[np.float64]:
        """Log weight of every label in every slot, from the scores of classes in every free slot."""
        language, distribution = self.language, self.distribution
        weights = language.fixed_weights(distribution.canvas)
        if len(distribution.free):
            # Every probability is at least exp(-80) / vocabulary size of the row's largest, so none underflows.
            weights[distribution.free, : language.eos_label] = _native.label_scores(
                language.label_begin, language.label_class, np.ascontiguousarray(scores), is_max
            )
            weights[distribution.free, language.eos_label] = scores[:, language.automaton.eos_class]
            weights[distribution.free, language.tail_label] = (
                0.0 if self.tail == "free" else scores[:, language.automaton.eos_class]
            )
        return weights

    def _factors(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._around is None:
            chain = self._sums()
            self._check(chain.total)
            language = self.language
            labels = np.exp(language.label_masses(chain) - chain.total)
            tail = np.zeros(self.distribution.slots)
            if self.tail == "free":
                tail = np.where(self.distribution.canvas == FREE, labels[:, language.tail_label], 0.0)
                labels[:, language.tail_label] = 0.0
            with np.errstate(divide="ignore"):
                self._around = np.log(language.classes_in(labels)), tail
        return self._around

    def _classes_of(self, label: int) -> NDArray[np.int32]:
        language = self.language
        if label >= language.eos_label:
            return np.array([language.automaton.eos_class], dtype=np.int32)
        return language.automaton.label_class[language.label_begin[label] : language.label_begin[label + 1]]

    @property
    def _needed(self) -> str:
        shortest = self.language.shortest
        return (
            f"the shortest string takes {shortest}" if shortest < FAR else "no tokens spell any string of the grammar"
        )
