"""Several trials where the model is in doubt, of which the most probable stays.

Source: Y. Wang et al., "Cautious Next Token Prediction" (Findings of ACL 2025, arXiv 2507.03038), there up to
punctuation and without a grammar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.sampler import Multinomial, Sampler
from structgen.decode.strategies.boundary import Boundary
from structgen.decode.strategies.moves import look
from structgen.decode.strategies.outcome import at_least, outcome
from structgen.decode.strategies.rollout import Rollout, chosen, next_token, roll

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.decode.sampling.samples import Samples

__all__ = ["Cautious"]


@final
@dataclass(frozen=True, slots=True)
class Cautious:
    """Draws tokens one by one; where the entropy is high, several trials up to a boundary, and keeps the best.

    Entropy is that of the tokens that the mask allows, so that structure, where there is no choice, is never doubtful.
    Trials share the cache of what is before them, and equal trials are one.  The best has the lowest perplexity
    under the model itself, without the mask: that a mask leaves few tokens makes none of them more probable.

    Attributes:
        threshold: entropy, in nats, up to which one token is drawn.
        full: entropy from which on there are ``trials``; in between their number grows linearly.
        trials: the most trials.
        boundary: where a trial ends.
        sampler: how tokens are drawn.

    Raises:
        ValueError: a number is out of range.
    """

    threshold: float = 0.5
    full: float = 2.0
    trials: int = 8
    boundary: Boundary = field(default_factory=Boundary)
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "no law that could be stated: where in doubt the most probable of a few trials"

    def __post_init__(self) -> None:
        at_least("Cautious", 0.0, threshold=self.threshold)
        at_least("Cautious", float(self.threshold), full=self.full)
        at_least("Cautious", 1, trials=self.trials)

    def trials_at(self, entropy: float) -> int:
        """How many trials an entropy asks for: the more, the higher it is."""
        if entropy <= self.threshold:
            return 1
        if entropy >= self.full:
            return self.trials
        return 1 + math.ceil((self.trials - 1) * (entropy - self.threshold) / (self.full - self.threshold))

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        branch: Branch | None = branches.root()
        while branch is not None and branch.finish_reason is None:
            (law,) = look(branches, [branch])
            count = self.trials_at(law.entropy)
            if count == 1:
                branch = next_token(branches, branch, law, self.sampler, generator)
            else:
                branch = self._best_trial(branches, branch, count, generator)
        return outcome(branches, [] if branch is None else [(branch, 0.0)])

    def _best_trial(
        self, branches: Branches, branch: Branch, count: int, generator: np.random.Generator
    ) -> Branch | None:
        trials = roll(
            branches,
            [Rollout.of(branch, count)],
            sampler=self.sampler,
            generator=generator,
            ended=lambda trial: self.boundary.ends(trial.branch, trial.steps),
        )
        best = chosen(branches, trials)
        return None if best is None else best.branch
