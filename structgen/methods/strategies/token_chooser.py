"""One output, token by token, for strategies whose choice depends on more than the current distribution.

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
    """A criterion for free text, where repetition comes from the model and not from the structure.

    Attributes:
        share: the minimal share of the vocabulary that is allowed. In the text of a JSON string nearly all tokens are
            allowed, in a number or between fields only a few.
        mass: the minimal probability that the model gives to allowed tokens.

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
        """Whether this distribution, over a vocabulary of ``size`` tokens, is one of free text."""
        log_mass = math.log(self.mass) if self.mass else -math.inf
        # The sum over a whole vocabulary is 1 up to rounding.
        return len(distribution) >= self.share * size and distribution.log_z >= log_mass - 1e-9


@final
@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """A position where a token has to be chosen.

    Attributes:
        branch: the output so far, and the session of the model.
        logits: the logits of the chosen model, ``[V]``.
        distribution: over the allowed tokens, two or more.
    """

    branch: Branch
    logits: Logits
    distribution: Distribution


class TokenChooser(Protocol):
    """The state of a strategy over one output."""

    @property
    def forwards(self) -> int:
        """Forward passes other than those of the branches."""

    def logits(self, branch: Branch, /) -> Logits:
        """Return the logits after a branch at which the mask allows a choice; called once for each choice."""

    def choose(self, point: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """Return an index into the distribution, in which two or more tokens have a positive probability.

        Args:
            point: the position.
            log_p: normalised log-probabilities, ``[n]``; minus infinity for tokens that a potential has refused.
            generator: of random numbers.
        """


def write_output(branches: Branches, generator: np.random.Generator, chooser: TokenChooser) -> Samples:
    """Generate one output without backtracking; no sample if potentials forbid every continuation."""
    branch: Branch | None = branches.root()
    while branch is not None and branch.finish_reason is None:
        branch = _forced(branches, branch)
        if branch is not None and branch.finish_reason is None:
            logits = chooser.logits(branch)
            distribution = branches.distribution(branch, logits)
            sampler = _ChooserSampler(chooser, ChoicePoint(branch, logits, distribution))
            index = sample_choice(branches, branch, distribution, sampler, generator)
            children = take(branches, branch, distribution, [] if index is None else [index])
            branch = children[0] if children else None
    samples = outcome(branches, [] if branch is None else [(branch, 0.0)])
    return _with_forwards(samples, chooser.forwards)


@final
class _ChooserSampler:
    """A chooser as a sampler at one position."""

    lossless = False

    def __init__(self, chooser: TokenChooser, point: ChoicePoint) -> None:
        self._chooser = chooser
        self._point = point

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        return self._chooser.choose(self._point, log_p, generator)


def _forced(branches: Branches, branch: Branch) -> Branch | None:
    """Take forced tokens up to a choice or the end; None if potentials forbid them."""
    current: Branch | None = branch
    while current is not None and current.finish_reason is None:
        before = current
        for token in current.matcher.forced_tokens():  # canonical tokens, as far as the budget allows them
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
    """A branch with a forced token, or EOS, which no model has scored."""
    return _admitted(branches, branches.split(branch, [Step(token, forced=True, logprob=0.0, log_z=None)], [0.0])[0])


def _admitted(branches: Branches, branch: Branch) -> Branch | None:
    if branch.score > -np.inf:
        return branch
    branches.drop(branch)
    return None


def _with_forwards(samples: Samples, more: int) -> Samples:
    """Add passes that the branches do not count."""
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
    """The use of the two models for one output.

    Attributes:
        chosen: chosen tokens, including EOS, without forced tokens.
        by_large: the tokens of ``chosen`` that come from the large model's distribution.
        forced: tokens that the grammar forced, including EOS; they need no model.
        switches: how often the model changed from one chosen token to the next.
        forwards_small: forward passes of the small model.
        forwards_large: forward passes of the large model.
        entropies: of the small model's distribution after masking, in nats, for each chosen token.
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
        """The share of the chosen tokens that come from the large model; 0 if none was chosen."""
        return self.by_large / self.chosen if self.chosen else 0.0


@final
@dataclass(frozen=True, slots=True)
class Switching:
    """Tokens from the given model, or from a large model where the given one has recently been uncertain.

        sg.generate(small, prompt, grammar, sampler=Switching(large))

    At each choice, the large model's distribution is used if the mean entropy of the small model's last ``window``
    distributions, including the current one, is above ``threshold``, and otherwise the small model's. But a model that
    has chosen fewer than ``min_run`` tokens since it took over continues. The small model begins. It runs at each
    choice, since its entropy decides; the large model runs only when needed, over all unread tokens at once.

    Both read the same token ids, prompt included: they need the same vocabulary, and a prompt in the small model's chat
    template. ``Stats.forwards`` counts the passes of both.

    Deviations from the paper: the entropy is after masking and at choices only, always of the small model, in nats (the
    paper uses bits: 1 bit is 0.69 nats). The defaults are not tuned.

    Attributes:
        large: the large model.
        threshold: mean entropy, in nats.
        window: the maximal number of choices in the mean.
        min_run: see above.
        sampler: samples a token of the distribution.
        report: called with a report of each output.

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
            GenerationError: prompt and budget do not fit the large model's context; raised before it runs.
        """
        problem = branches.problem
        check_start(self.large, len(problem.prompt) - len(problem.begun), problem.constraint, problem.max_tokens)
        with Context(self.large, problem.prompt) as context:
            chooser = _SwitchingChooser(self, branches, context)
            samples = write_output(branches, generator, chooser)
        if self.report is not None:
            for sample in samples.samples:
                self.report(chooser.result(sum(step.forced for step in sample.result.steps)))
        return samples


@final
class _SwitchingChooser:
    """The state of ``Switching`` for one output."""

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
        """See ``TokenChooser``: passes of the large model."""
        return self._large.forwards

    def logits(self, branch: Branch) -> Logits:
        """Run the small model, and the large one if it is in charge."""
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

    def choose(self, point: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator) -> int:
        """See ``TokenChooser``."""
        return self._switching.sampler.draw(log_p, generator)

    def result(self, forced: int) -> SwitchingReport:
        """The report of the output."""
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
