"""One output, token by token, for strategies that choose by more than the distribution in front of them.

``Switching`` is one: a small model hands over to a large one where it is uncertain.

Source: T. Simonds, "Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference" (2025, arXiv
2502.06833).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.context import Context, check_start
from structgen.decode.step.result import Step
from structgen.decode.step.sampler import Greedy, Sampler
from structgen.methods.strategies.branch_ops import at_least, outcome, sample_choice, take

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.distribution import Distribution
    from structgen.models.protocol import LanguageModel, Logits

__all__ = ["ChoicePoint", "FreeText", "Switching", "SwitchingReport", "TokenChooser", "write_output"]


@final
@dataclass(frozen=True, slots=True)
class FreeText:
    """Where the grammar leaves the model so much freedom that repetition is the model's doing, and no structure.

    Attributes:
        share: of the vocabulary: so much of it is allowed at least.  In the text of a JSON string nearly all tokens
            are, in a number or at a joint few.
        mass: so much of the model's probability is allowed at least.

    Raises:
        ValueError: a number is not in [0, 1].
    """

    share: float = 0.1
    mass: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("mass", self.mass)):
            if not 0 <= value <= 1:
                raise ValueError(f"FreeText: {name} must be in [0, 1]; found {value!r}")

    def holds(self, distribution: Distribution, size: int) -> bool:
        """Whether this distribution, over ``size`` tokens, is one of free text."""
        least = math.log(self.mass) if self.mass else -math.inf
        # The sum over a whole vocabulary is 1 up to rounding.
        return len(distribution) >= self.share * size and distribution.log_z >= least - 1e-9


@final
@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """Where a token has to be chosen.

    Attributes:
        branch: the output so far, and the session of the model.
        logits: what the chosen model says of every token, ``[V]``.
        distribution: of what the mask allows, two tokens or more.
    """

    branch: Branch
    logits: Logits
    distribution: Distribution


class TokenChooser(Protocol):
    """The state of a strategy over one output."""

    @property
    def forwards(self) -> int:
        """Forward passes beside those of the branches."""

    def logits(self, branch: Branch, /) -> Logits:
        """What is said after a branch where the mask allows a choice; asked once for each choice."""

    def choose(self, place: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """Return an index into the distribution, in which two tokens or more have a positive probability.

        Args:
            place: where.
            log_p: what tokens are drawn from, normalised, ``[n]``; minus infinity where a potential has refused one.
            generator: the randomness.
        """


def write_output(branches: Branches, generator: np.random.Generator, walker: TokenChooser) -> Samples:
    """Write one output; it does not go back, so there is no sample where potentials leave nothing to go on with."""
    branch: Branch | None = branches.root()
    while branch is not None and branch.finish_reason is None:
        branch = _forced(branches, branch)
        if branch is not None and branch.finish_reason is None:
            logits = walker.logits(branch)
            distribution = branches.distribution(branch, logits)
            sampler = _ChooserSampler(walker, ChoicePoint(branch, logits, distribution))
            index = sample_choice(branches, branch, distribution, sampler, generator)
            children = take(branches, branch, distribution, [] if index is None else [index])
            branch = children[0] if children else None
    samples = outcome(branches, [] if branch is None else [(branch, 0.0)])
    return _with_forwards(samples, walker.forwards)


@final
class _ChooserSampler:
    """A walker as a sampler at one place."""

    lossless = False

    def __init__(self, walker: TokenChooser, place: ChoicePoint) -> None:
        self._walker = walker
        self._place = place

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        return self._walker.choose(self._place, log_p, generator)


def _forced(branches: Branches, branch: Branch) -> Branch | None:
    """Take what the grammar forces, up to where there is a choice, or the end; None where that is forbidden."""
    current: Branch | None = branch
    while current is not None and current.finish_reason is None:
        before = current
        for token in current.matcher.forced_tokens():  # canonical ones, if the budget has room for them
            if branches.remaining(current) <= 0 or not branches.accepts(current, token):
                break
            current = _added(branches, current, token)
            if current is None:
                return None
        if current is not before:
            continue
        ids = branches.allowed(current)
        if not len(ids):
            return _admitted(branches, branches.finish(current)) if branches.ends_here(current) else None
        if len(ids) > 1:
            return current
        token = int(ids[0])
        current = _added(branches, current, None if branches.is_stop(token) else token)
    return current


def _added(branches: Branches, branch: Branch, token: int | None) -> Branch | None:
    """A branch with a forced token, or the stop, which no model has scored."""
    return _admitted(branches, branches.split(branch, [Step(token, True, 0.0, None)], [0.0])[0])


def _admitted(branches: Branches, branch: Branch) -> Branch | None:
    if branch.score > -np.inf:
        return branch
    branches.drop(branch)
    return None


def _with_forwards(samples: Samples, more: int) -> Samples:
    """Count passes that the branches know nothing of."""
    counted = tuple(
        replace(
            sample,
            result=replace(
                sample.result, stats=replace(sample.result.stats, forwards=sample.result.stats.forwards + more)
            ),
        )
        for sample in samples.samples
    )
    return replace(samples, samples=counted, forwards=samples.forwards + more)


@final
@dataclass(frozen=True, slots=True)
class SwitchingReport:
    """Which model did what in one output.

    Attributes:
        chosen: tokens that were chosen, a stop included; those that the grammar forced were not.
        by_large: those of them that were chosen by the distribution of the large model.
        forced: tokens that the grammar forced, a stop included; no model was asked.
        switches: how often the next token was another model's than the one before.
        forwards_small: forward passes of the small model.
        forwards_large: forward passes of the large model.
        entropies: of the small model's distribution after masking, in nats, for each token that was chosen.
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
        """The share of the tokens that were chosen which the large model gave the distribution of; 0 of none."""
        return self.by_large / self.chosen if self.chosen else 0.0


@final
@dataclass(frozen=True, slots=True)
class Switching:
    """Tokens from the model that is asked, or from a large one where the first has been uncertain of late.

        sg.generate(small, prompt, grammar, sampler=Switching(large))

    At each choice the next distribution is the large model's where the mean entropy of the small model's last
    ``window`` distributions, the one at hand included, is above ``threshold``, and the small model's where it is not;
    but a model that has chosen fewer than ``min_run`` tokens since it took over goes on.  The small model begins.  It
    runs at each choice, since its entropy is what decides; the large one runs only where it is needed, over all that it
    has not seen yet at once.

    Both read the same token ids, prompt included: they need the same vocabulary, and a prompt that is in the small
    model's chat template.  ``Stats.forwards`` counts the passes of both.

    Deviations from the paper: entropy after masking and at choices only, always of the small model, in nats (the paper
    has bits: 1 bit is 0.69 nats).  The numbers are no tuned ones.

    Attributes:
        large: the other model.
        threshold: mean entropy, in nats.
        window: how many choices the mean is over, at most.
        min_run: see above.
        sampler: how a token is drawn from the distribution.
        report: called with what each output took.

    Raises:
        ValueError: a number is out of range.
    """

    large: LanguageModel
    threshold: float = 0.7
    window: int = 5
    min_run: int = 5
    sampler: Sampler = field(default_factory=Greedy)
    report: Callable[[SwitchingReport], object] | None = None

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = (
        "at each step the distribution of one of two models: of the large one where the small is uncertain"
    )

    def __post_init__(self) -> None:
        at_least("Switching", 0.0, threshold=self.threshold)
        at_least("Switching", 1, window=self.window)
        at_least("Switching", 0, min_run=self.min_run)

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
        entropy = self._branches.distribution(branch, small).entropy
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
        if wants_large != self._uses_large and self._run >= self._switching.min_run:
            self._uses_large = wants_large
            self._run = 0
            self._switches += 1
        self._run += 1
