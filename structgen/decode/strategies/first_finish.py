"""Several samples at a time, of which the first that ends is taken.

Source: A. Agarwal et al., "First Finish Search: Efficient Test-Time Scaling in Large Language Models" (2025, arXiv
2505.18149).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.sampler import Multinomial, Sampler
from structgen.decode.strategies.moves import look
from structgen.decode.strategies.outcome import at_least, judged, outcome
from structgen.decode.strategies.rollout import Rollout, roll, total

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.potentials import Hypothesis
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.decode.sampling.samples import Samples

__all__ = ["FirstFinish"]


@final
@dataclass(frozen=True, slots=True)
class FirstFinish:
    """Draws several outputs side by side and returns the first that is complete; the others are given up.

    For text that reasons, where the short of several outputs are the better.  Where the grammar fixes the structure,
    being short says nothing of how good an output is: let ``until`` tell then where the free part ends.

    Attributes:
        samples: how many.
        until: whether a beginning is as far as it takes to win; what remains is drawn for the winner alone.  None waits
            for a complete output.
        sampler: how tokens are drawn.

    Of several that arrive with the same token the most probable wins, and of equally probable ones that whose tokens
    come first in order.

    Raises:
        ValueError: ``samples`` is less than 1.
    """

    samples: int = 4
    until: Callable[[Hypothesis], bool] | None = None
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the shortest of several outputs, each drawn by locally constrained decoding"

    def __post_init__(self) -> None:
        at_least("FirstFinish", 1, samples=self.samples)

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        winner = self._winner(branches, generator)
        start = [] if winner is None else [Rollout.of(winner)]
        finished = roll(branches, start, sampler=self.sampler, generator=generator, ended=lambda _: False)
        return outcome(branches, [(each.branch, 0.0) for each in finished], drawn=self.samples)

    def _winner(self, branches: Branches, generator: np.random.Generator) -> Branch | None:
        live = [Rollout.of(branches.root(), self.samples)]
        arrived: list[Rollout] = []
        while live and not arrived:
            grown: list[Rollout] = []
            for rollout, law in zip(live, look(branches, [each.branch for each in live]), strict=True):
                grown += rollout.grown(branches, law, self.sampler, generator)
            arrived = [rollout for rollout in grown if self._has_arrived(rollout)]
            live = grown
        arrived.sort(key=lambda each: (-total(each.branch), each.branch.hypothesis.tokens))
        winner = arrived[0] if arrived else None
        for rollout in live:
            if rollout is not winner:
                branches.drop(rollout.branch)
        return None if winner is None else winner.branch

    def _has_arrived(self, rollout: Rollout) -> bool:
        if rollout.is_finished:
            return True
        return self.until is not None and bool(judged(self.until, rollout.branch.hypothesis, what="until"))
