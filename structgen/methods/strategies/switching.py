"""A small model that hands over to a large one where it is uncertain.

The rolling mean of the entropy decides.  It is measured on the law after masking, and only where there is a choice:
behind ``{"name`` the law of an unconstrained model may have any entropy, and yet nothing is to be decided.  That is why
this is a sampler of whole outputs and no language model: a model never sees a mask.  A hook into the loop over single
laws would not do either, since it would have to bring a second model's context into a loop that knows one.

Source: T. Simonds, "Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference" (2025, arXiv
2502.06833).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.step.budget import check_start
from structgen.decode.step.context import Context
from structgen.decode.step.sampler import Greedy, Sampler
from structgen.methods.strategies.branch_ops import at_least
from structgen.methods.strategies.token_chooser import ChoicePoint, write_output

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.models.protocol import LanguageModel, Logits

__all__ = ["Switching", "SwitchingReport"]


@final
@dataclass(frozen=True, slots=True)
class SwitchingReport:
    """Which model did what in one output.

    Attributes:
        chosen: tokens that were chosen, a stop included; those that the grammar forced were not.
        by_large: those of them that were chosen by the law of the large model.
        forced: tokens that the grammar forced, a stop included; no model was asked.
        switches: how often the next token was another model's than the one before.
        forwards_small: forward passes of the small model.
        forwards_large: forward passes of the large model.
        entropies: of the small model's law after masking, in nats, for each token that was chosen.
    """

    chosen: int
    by_large: int
    forced: int
    switches: int
    forwards_small: int
    forwards_large: int
    entropies: tuple[float, ...]

    @property
    def share(self) -> float:
        """The share of the tokens that were chosen which the large model gave the law of; 0 of none."""
        return self.by_large / self.chosen if self.chosen else 0.0


@final
@dataclass(frozen=True, slots=True)
class Switching:
    """Tokens from the model that is asked, or from a large one where the first has been uncertain of late.

        sg.generate(small, prompt, grammar, sampler=Switching(large))

    At each choice the next law is the large model's where the mean entropy of the small model's last ``window`` laws,
    the one at hand included, is above ``threshold``, and the small model's where it is not; but a model that has chosen
    fewer than ``least_run`` tokens since it took over goes on.  The small model begins.  It runs at each choice, since
    its entropy is what decides; the large one runs only where it is needed, over all that it has not seen yet at once.

    Both read the same token ids, prompt included: they need the same vocabulary, and a prompt that is in the small
    model's chat template.  ``Stats.forwards`` counts the passes of both.

    Deviations from the paper: entropy after masking and at choices only, always of the small model, in nats (the paper
    has bits: 1 bit is 0.69 nats).  The numbers are no tuned ones.

    Attributes:
        large: the other model.
        threshold: mean entropy, in nats.
        window: how many choices the mean is over, at most.
        least_run: see above.
        sampler: how a token is drawn from the law.
        report: called with what each output took.

    Raises:
        ValueError: a number is out of range.
    """

    large: LanguageModel
    threshold: float = 0.7
    window: int = 5
    least_run: int = 5
    sampler: Sampler = field(default_factory=Greedy)
    report: Callable[[SwitchingReport], object] | None = None

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "at each step the law of one of two models: of the large one where the small is uncertain"

    def __post_init__(self) -> None:
        at_least("Switching", 0.0, threshold=self.threshold)
        at_least("Switching", 1, window=self.window)
        at_least("Switching", 0, least_run=self.least_run)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``.

        Raises:
            VocabularyError: the models have different vocabularies.
            GenerationError: prompt and budget do not fit the large model's context; before it is run.
        """
        problem = branches.problem
        check_start(self.large, len(problem.prompt) - len(problem.begun), problem.constraint, problem.max_tokens)
        with Context(self.large, problem.prompt) as context:
            walker = _SwitchingChooser(self, branches, context)
            samples = write_output(branches, generator, walker)
        if self.report is not None:
            for sample in samples.samples:
                self.report(walker.result(sum(step.forced for step in sample.result.steps)))
        return samples


@final
class _SwitchingChooser:
    """One output."""

    def __init__(self, switching: Switching, branches: Branches, large: Context) -> None:
        self._switching = switching
        self._branches = branches
        self._large = large
        self._begun = len(branches.problem.begun)
        self._recent: deque[float] = deque(maxlen=switching.window)
        self._entropies: list[float] = []
        self._uses_large = False
        self._run = 0  # tokens of the model in charge since it took over
        self._by_large = 0
        self._switches = 0

    @property
    def forwards(self) -> int:
        """Passes of the large model."""
        return self._large.forwards

    def logits(self, branch: Branch) -> Logits:
        """Ask the small model, and the large one if its turn has come."""
        (small,) = self._branches.logits([branch])
        entropy = self._branches.law(branch, small).entropy
        self._recent.append(entropy)
        self._entropies.append(entropy)
        self._decide()
        if not self._uses_large:
            return small
        self._by_large += 1
        unread = branch.hypothesis.tokens[self._begun + len(self._large) - len(self._branches.problem.prompt) :]
        self._large.append(unread)
        return self._large.session.extend(self._large.unseen)

    def choose(self, place: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``Walker``."""
        return self._switching.sampler.draw(log_p, generator)

    def result(self, forced: int) -> SwitchingReport:
        """What the output took."""
        return SwitchingReport(
            chosen=len(self._entropies),
            by_large=self._by_large,
            forced=forced,
            switches=self._switches,
            forwards_small=self._branches.forwards,
            forwards_large=self._large.forwards,
            entropies=tuple(self._entropies),
        )

    def _decide(self) -> None:
        wants_large = sum(self._recent) / len(self._recent) > self._switching.threshold
        if wants_large != self._uses_large and self._run >= self._switching.least_run:
            self._uses_large = wants_large
            self._run = 0
            self._switches += 1
        self._run += 1
