"""One of several drafters at a time, that which has brought the most in positions of the kind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.guard import GuardedDrafting
from structgen.decode.speculative.shapes.arms import UCB, Arms, Policy
from structgen.decode.speculative.shapes.outcome import choices

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["Bandit"]

_WIDTH: Final = 0.5
"""Outputs are short: less is tried than theory asks for."""


@final
@dataclass(frozen=True)
class Bandit(Drafter):
    """Chooses among drafters, and learns which to choose in which kind of position.

    A drafter may come several times with other settings.  What a round brings is the number of choices that its pass
    and its rows told, divided by its time, that of a pass over one row and the tree that was run and the price of the
    drafter; the reward is that, up to ``most``, as a share of it.

    For drafters that cost something.  Where asking is free, ``Combined`` asks all of them and learns from every guess.

    Source: Y. Hou, F. Zhang, C. Du et al., "BanditSpec" (ICML 2025, arXiv 2505.15141); kinds of positions and costs are
    ours.

    Attributes:
        drafters: the arms; one that fails brings no guesses from then on.
        policy: ``UCB`` or ``EXP3``.
        cost: of passes; None is what is assumed of the model.
        prices: what a draft of each costs, in passes over one row; none at all where it is empty.
        most: choices in the time of a pass over one row that count as the full reward; above 1.
        arms: what is known; outputs that share it learn from each other.

    Raises:
        ValueError: there are no drafters, or a number is out of range.
    """

    drafters: tuple[Drafter, ...]
    policy: Policy = field(default_factory=lambda: UCB(_WIDTH))
    cost: CostModel | None = None
    prices: tuple[float, ...] = ()
    most: float = 6.0
    arms: Arms = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.drafters:
            raise ValueError("Bandit: there must be a drafter; found none")
        if self.prices and len(self.prices) != len(self.drafters):
            raise ValueError(f"Bandit: there must be a price for each of {len(self.drafters)} drafters, or none at all")
        if not all(math.isfinite(price) and price >= 0 for price in self.prices):
            raise ValueError(f"Bandit: prices must be finite and not negative; found {self.prices!r}")
        if not (math.isfinite(self.most) and self.most > 1):
            raise ValueError(f"Bandit: most must be finite and above 1; found {self.most!r}")
        object.__setattr__(self, "arms", Arms(self.policy, len(self.drafters)))

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return " or ".join(dict.fromkeys(drafter.name for drafter in self.drafters))

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _Playing(self, self.cost or CostModel.assumed(context.model), context, task)


class _Round(NamedTuple):
    start: int
    kind: int
    arm: int
    probability: float
    tree: DraftTree


@final
class _Playing(Drafting):
    def __init__(self, bandit: Bandit, cost: CostModel, context: Context, task: DraftTask) -> None:
        self._bandit = bandit
        self._cost = cost
        self._context = context
        self._generator = task.generator
        self._members = [GuardedDrafting(drafter, context, task) for drafter in bandit.drafters]
        self._round: _Round | None = None

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._settle()
        arm, probability = self._bandit.arms.choose(state.kind, self._generator.random)
        member = self._members[arm]
        tree = member.propose(context, state, budget)
        self._round = _Round(len(context), state.kind, arm, probability, tree)
        return _signed(tree, member.name)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        if self._round is not None and self._round.start == verified.start:
            self._round = self._round._replace(tree=verified.tree)  # what was made of it
        for member in self._members:
            member.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._settle()
        for member in self._members:
            member.close()

    def _settle(self) -> None:
        """Reward the last round."""
        last, self._round = self._round, None
        if last is None or last.start >= len(self._context):
            return
        told = 1 + choices(last.tree, self._context.tokens[last.start :])
        price = self._bandit.prices[last.arm] if self._bandit.prices else 0.0
        speed = told / (self._cost.relative(1 + len(last.tree)) + price)
        self._bandit.arms.learn(last.kind, last.arm, last.probability, min(speed / self._bandit.most, 1.0))


def _signed(tree: DraftTree, name: str) -> DraftTree:
    """The tree with the drafter's name where no source is told."""
    tree.sources[:] = [source or name for source in tree.sources]
    return tree
