"""Where drafts of sequences written side by side come from, and how deep looking ahead pays for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.sampling.protocol import SequenceSampler
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.speculation import AnyDrafter, Speculation, as_speculation
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.sampling.proposal import Proposal
    from structgen.decode.speculative.cost import CostModel
    from structgen.decode.step.context import Context
    from structgen.engine import Constraint, Matcher

__all__ = ["DICTATED", "AutoParticles", "DictatedText", "Outlook", "joint_depth", "outlook", "whole_speculation"]

_MAX_DRAFT_TOKENS: Final = 64


@final
@dataclass(frozen=True, slots=True)
class AutoParticles(Drafter):
    """``Auto`` for as long as one particle is written, and nobody while several are.

    A pass is spared only where all particles that grow together are guessed right, which mostly fails for any but the
    text that the grammar dictates; that is looked at behind all of them in any case, and costs next to nothing.
    """

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "auto"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        # Imported here: it takes all that needs no model, and is not wanted where several particles are written.
        from structgen.decode.speculative.drafters.auto import Auto

        return Auto().start(context, task)


def whole_speculation(drafter: AnyDrafter, sampler: SequenceSampler | Proposal) -> Speculation | None:
    """Return what ``drafter`` stands for where outputs are drawn as a whole; ``"auto"`` is ``AutoParticles``.

    Samplers whose sequences grow side by side say that they look ahead (``looks_ahead``), and so does a proposal, which
    is sampled by one of them; for others ``"auto"`` is nothing.

    Raises:
        TypeError: it is none.
        ValueError: a drafter is given, and the sampler does not look ahead.
    """
    looks_ahead = getattr(sampler, "looks_ahead", not isinstance(sampler, SequenceSampler))
    if drafter == "auto":
        return Speculation(AutoParticles(), budget=_MAX_DRAFT_TOKENS, cost="assumed") if looks_ahead else None
    speculation = as_speculation(drafter)
    if speculation is not None and not looks_ahead:
        raise ValueError(
            f"drafter={drafter!r:.60} is not for sampler {type(sampler).__name__}, which goes back and forth between "
            "beginnings; leave it out"
        )
    return speculation


DICTATED: Final = "dictated text"
"""The source of such tokens."""

_PRIOR: Final = 0.98
_STRENGTH: Final = 10.0
"""So many tokens are assumed of which that share was spelled as the tokenizer would."""


@final
class DictatedText:
    """Adds such text to the guesses of a run, as likely as it has proved to be spelled so.

    Args:
        constraint: what outputs are members of.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._stops = frozenset(constraint.vocabulary.eos)
        self._has_reach = constraint.native.has_reach  # else to ask for it may cost as much as a mask
        self._spelled, self._respelled = _STRENGTH * _PRIOR, _STRENGTH * (1 - _PRIOR)

    @property
    def confidence(self) -> float:
        """Estimated probability that a token of it is taken."""
        return self._spelled / (self._spelled + self._respelled)

    def extend(self, tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int) -> None:
        """Add what is dictated to a tree: at its root, and behind the ends of its paths.

        Args:
            tree: tokens that the grammar allows.
            matcher: where the output stands; it is moved, and moved back.
            remaining: tokens that the output may still have.
            budget: the most nodes of the tree.
        """
        reach = tree.reach()
        ends = [ROOT, *sorted(tree.leaves(), key=lambda node: -reach[node])]
        confidence = self.confidence
        before = matcher.history_length
        for end in ends:
            room = budget - len(tree)
            if room <= 0:
                break
            path = tree.prefix(end)
            try:
                if all(matcher.accept(token) for token in path):
                    run = self._run(matcher, remaining - len(path), room)
                    tree.extend(end, run, confidence, source=DICTATED)
            except LimitExceeded:
                break  # the limits are for outputs, not for guesses
            finally:
                matcher.rollback(matcher.history_length - before)

    def learn(self, tree: DraftTree, node: int, ways: Sequence[tuple[int, float]]) -> None:
        """Count how much of what came behind a node is spelled as guessed.

        Args:
            tree: what was looked at.
            node: of it, or ``ROOT``.
            ways: tokens that came, none twice, each with its log-probability.
        """
        dictated = [tree.tokens[child] for child in tree.children(node) if tree.sources[child] == DICTATED]
        if not dictated or not ways:
            return
        most = max(log_p for _, log_p in ways)
        weights = [math.exp(log_p - most) for _, log_p in ways]
        spelled = sum(weight for (token, _), weight in zip(ways, weights, strict=True) if token in dictated)
        self._spelled += spelled / sum(weights)
        self._respelled += 1 - spelled / sum(weights)

    def _run(self, matcher: Matcher, remaining: int, room: int) -> list[int]:
        """The tokens that are dictated where a matcher stands; it is moved."""
        run: list[int] = []
        while True:
            tokens = matcher.forced_tokens()
            if not tokens:
                allowed = matcher.allowed_tokens(2)
                tokens = allowed if len(allowed) == 1 and allowed[0] not in self._stops else []
            if not tokens:
                return run
            for token in tokens:
                left = remaining - len(run)
                is_tight = left <= 0 or (self._has_reach and matcher.needs_budget_mask(left))
                if len(run) == room or is_tight or not matcher.accept(token):
                    return run
                run.append(token)


class Outlook(NamedTuple):
    """What may be known of one sequence after further tokens: the ``d``-th entries are about ``d + 1`` more of them.

    Attributes:
        shares: estimated probability that the law behind so many tokens is known.
        nodes: rows that it takes.
        particles: how many the sequence stands for, each of which takes tokens of its own.
    """

    shares: list[float]
    nodes: list[int]
    particles: int = 1


def outlook(tree: DraftTree, particles: int = 1) -> Outlook:
    """What a pass tells that runs ``tree`` behind a sequence of so many particles."""
    depths = tree.token_tree().depths()
    deepest = 1 + max(depths, default=-1)
    shares, nodes = [0.0] * deepest, [0] * deepest
    for depth, reach in zip(depths, tree.reach(), strict=True):
        shares[depth] += reach
        nodes[depth] += 1
    return Outlook([min(share, 1.0) for share in shares], nodes, particles)


def joint_depth(outlooks: Sequence[Outlook], cost: CostModel, *, pending: int, budget: int) -> int:
    """Return to which depth it pays to look ahead: the one that is expected to save the most time, or 0.

    A round that needs no pass saves one over one row.  A row that is taken would have been run later, at the price of a
    row, by a pass that had to come or by the one that is spared.

    Args:
        outlooks: of all sequences that grow together; of those that this pass need not run, without nodes.
        cost: of passes.
        pending: rows that the pass has in any case.
        budget: the most nodes, of all sequences together.

    Complexity: O(sequences * depth).
    """
    best, found = 0.0, 0
    gain, rows = 0.0, 0
    before = cost.relative(pending)
    for depth in range(max((len(each.shares) for each in outlooks), default=0)):
        level = [each for each in outlooks if depth < len(each.shares)]
        rows += sum(each.nodes[depth] for each in level)
        if len(level) < len(outlooks) or rows > budget:
            break
        price = cost.relative(pending + rows) - before
        taken = sum(each.shares[depth] for each in level if each.nodes[depth])
        spared = math.prod(each.shares[depth] ** each.particles for each in level)
        gain += spared + (max(taken - 1.0, 0.0) * price / rows if rows else 0.0)
        if gain - price > best:
            best, found = gain - price, depth + 1
    return found
