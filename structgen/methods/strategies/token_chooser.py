"""One output, token by token, for strategies that choose by more than the law in front of them.

A ``Sampler`` sees the law of the next token and no more.  A strategy that asks another model, or looks at what it has
written, is a ``SequenceSampler`` that walks: what the grammar forces is taken without asking any model, and only where
there is a choice the strategy is asked, with the law after masking in hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.result import Step
from structgen.methods.strategies.branch_ops import outcome, sample_choice, take

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.distribution import Distribution
    from structgen.models.protocol import Logits

__all__ = ["ChoicePoint", "FreeText", "TokenChooser", "write_output"]


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

    def holds(self, law: Distribution, size: int) -> bool:
        """Whether this law, over ``size`` tokens, is one of free text."""
        least = math.log(self.mass) if self.mass else -math.inf
        # The sum over a whole vocabulary is 1 up to rounding.
        return len(law) >= self.share * size and law.log_z >= least - 1e-9


@final
@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """Where a token has to be chosen.

    Attributes:
        branch: the output so far, and the session of the model.
        logits: what the chosen model says of every token, ``[V]``.
        law: of what the mask allows, two tokens or more.
    """

    branch: Branch
    logits: Logits
    law: Distribution


class TokenChooser(Protocol):
    """The state of a strategy over one output."""

    @property
    def forwards(self) -> int:
        """Forward passes beside those of the branches."""

    def logits(self, branch: Branch, /) -> Logits:
        """What is said after a branch where the mask allows a choice; asked once for each choice."""

    def choose(self, place: ChoicePoint, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """Return an index into the law, in which two tokens or more have a positive probability.

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
            law = branches.law(branch, logits)
            sampler = _ChooserSampler(walker, ChoicePoint(branch, logits, law))
            index = sample_choice(branches, branch, law, sampler, generator)
            children = take(branches, branch, law, [] if index is None else [index])
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
