"""Draft tokens for sequences that are written together, and the text that the grammar dictates to all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.sampling.shared_pass import ExploredTrees, Outlook, joint_depth, outlook
from structgen.decode.speculative.cost import company_of, pruned_tree
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, merged_tree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.speculative.grammar_walk import grammar_filtered
from structgen.decode.speculative.speculation import position_kind
from structgen.decode.step.logits_row import on_host
from structgen.decode.step.result import DraftStats
from structgen.decode.step.sampler import Multinomial
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch, MaskCache
    from structgen.decode.sampling.protocol import Problem
    from structgen.decode.sampling.shared_pass import Passes
    from structgen.decode.speculative.cost import CostModel
    from structgen.decode.speculative.speculation import Speculation
    from structgen.decode.step.context import Context
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import Logits

__all__ = ["DICTATED", "AutoParticles", "BranchDrafts", "DictatedText", "Growing"]


@final
@dataclass(frozen=True, slots=True)
class AutoParticles(Drafter):
    """``Auto`` while a single particle is written; with several particles only dictated text is drafted.

    A pass is saved only if the drafts of all particles are right, which is rare except for dictated text.  That text is
    drafted with every drafter, at next to no cost.
    """

    name = "auto"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        # Imported here: it loads many drafters, which several particles do not need.
        from structgen.decode.speculative.drafters.auto import Auto

        return Auto().start(context, task)


DICTATED: Final = "dictated text"
"""The source of its tokens, in draft trees and statistics."""

_PRIOR: Final = 0.98
_STRENGTH: Final = 10.0
"""A beta prior: ``_STRENGTH`` tokens, the share ``_PRIOR`` of them spelled as by the tokenizer."""


@final
class DictatedText:
    """Adds text that the grammar dictates to draft trees, and estimates how often it is spelled as drafted.

    Args:
        constraint: the constraint of the outputs.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._stops = frozenset(constraint.vocabulary.eos)
        self._has_reach = constraint.native.has_reach  # else ``needs_budget_mask`` may cost as much as a mask
        self._spelled, self._respelled = _STRENGTH * _PRIOR, _STRENGTH * (1 - _PRIOR)

    @property
    def confidence(self) -> float:
        """Estimated probability that a token of dictated text is accepted."""
        return self._spelled / (self._spelled + self._respelled)

    def extend(self, tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int) -> None:
        """Add dictated text to a tree of at most ``budget`` nodes: at its root, and after its leaves.

        The grammar allows all its tokens.  The matcher, at the root, is advanced and rolled back; ``remaining`` tokens
        are left of the output's budget.
        """
        reach = tree.reach()
        ends = [ROOT, *sorted(tree.leaves(), key=lambda node: -reach[node])]
        confidence = self.confidence
        before = matcher.history_length
        for end in ends:
            capacity = budget - len(tree)
            if capacity <= 0:
                break
            path = tree.prefix(end)
            try:
                if all(matcher.accept(token) for token in path):
                    run = self._run(matcher, remaining - len(path), capacity)
                    tree.extend(end, run, confidence, source=DICTATED)
            except LimitExceeded:
                break  # the limits are for outputs, not for draft tokens
            finally:
                matcher.rollback(matcher.history_length - before)

    def learn(self, tree: DraftTree, node: int, taken: Sequence[tuple[int, float]]) -> None:
        """Update the estimate by the distinct tokens that were chosen after a node, each with its log-probability."""
        dictated = [tree.tokens[child] for child in tree.children(node) if tree.sources[child] == DICTATED]
        if not dictated or not taken:
            return
        top = max(log_p for _, log_p in taken)
        weights = [math.exp(log_p - top) for _, log_p in taken]
        spelled = sum(weight for (token, _), weight in zip(taken, weights, strict=True) if token in dictated)
        self._spelled += spelled / sum(weights)
        self._respelled += 1 - spelled / sum(weights)

    def _run(self, matcher: Matcher, remaining: int, capacity: int) -> list[int]:
        """Advance a matcher by the dictated tokens, and return them; stops where the budget narrows the choice."""
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
                if len(run) == capacity or is_tight or not matcher.accept(token):
                    return run
                run.append(token)


_DRAFT_STREAM: Final = 1
_MAX_PENDING_ROWS: Final = 64
"""More rows than this are a prompt, for which the cost of a further row does not matter."""


class Growing(NamedTuple):
    """A sequence that is being written.

    Attributes:
        context: the prompt and the sequence.
        matcher: the matcher after it.
        remaining: how many tokens are left of its budget.
        particles: number of its particles.
    """

    context: Context
    matcher: Matcher
    remaining: int
    particles: int


class _TokenPasses(NamedTuple):
    """The forward passes of one round."""

    passes: int
    needed: float  # mean number of rows per pass without draft tokens
    rows: float  # the same with draft tokens
    seconds: float  # of all passes


@final
class BranchDrafts:
    """The draft tokens for the sequences of one run.  ``is_packed`` is whether one pass runs several sequences.

    Each sequence has a ``Drafting`` of its own, started when it is first needed, which stays with its context.
    """

    def __init__(self, speculation: Speculation, problem: Problem, masks: MaskCache, *, is_packed: bool) -> None:
        self._speculation = speculation
        self._max_particles = 1 if isinstance(speculation.drafter, AutoParticles) else None  # for its drafter
        self._model = problem.model
        self._cost = speculation.cost_of(problem.model)
        self._masks = masks
        self._is_packed = is_packed
        generator = np.random.Generator(np.random.PCG64([0, _DRAFT_STREAM]))
        prompt_tokens = len(problem.prompt) - len(problem.begun)
        self._task = DraftTask(problem.constraint, Multinomial(), prompt_tokens, generator)
        self._dictated = DictatedText(problem.constraint)
        self._draftings: dict[Context, GuardedDrafting] = {}
        self._explored = ExploredTrees()
        self._passes = 0
        self._saved = 0
        self._needed = 0  # rows of the next passes without draft tokens
        self._runs: list[_TokenPasses] = []
        self._time = 0.0

    def run(self, branches: Sequence[Branch], remaining: Sequence[int], counts: Sequence[int], passes: Passes) -> None:
        """Set the logits of every branch, from earlier look-aheads or by passes that look ahead.

        For each branch, ``remaining`` tokens are left of the budget, and ``counts`` next tokens will be sampled.
        """
        pending: list[tuple[Branch, Growing]] = []
        ready: list[Growing] = []
        for branch, left, count in zip(branches, remaining, counts, strict=True):
            if branch.context is None:
                continue
            growing = Growing(branch.context, branch.matcher, left, count)
            if branch.logits is None:
                branch.logits = next(map(on_host, branch.context.computed(1)), None)
            if branch.logits is None:
                pending.append((branch, growing))
            else:
                ready.append(growing)
        self._saved += (not pending and bool(ready)) if self._is_packed else len(ready)
        if not pending:
            return
        growing_now = [growing for _, growing in pending]
        trees = self._propose(growing_now, ready)
        before = passes.time_s
        rows = passes.run(
            [growing.context for growing in growing_now], [tree.token_tree() if len(tree) else None for tree in trees]
        )
        for (branch, _), row in zip(pending, rows, strict=True):
            branch.logits = row
        self._observe(growing_now, trees, rows, passes.time_s - before)

    def _propose(self, pending: Sequence[Growing], ready: Sequence[Growing]) -> list[DraftTree]:
        """Draft the next tokens of the sequences to run; the logits of those in ``ready`` are computed already."""
        began = perf_counter()
        self._needed = sum(len(each.context.unseen) for each in pending)
        particles = sum(each.particles for each in (*pending, *ready))
        uses_drafter = self._max_particles is None or particles <= self._max_particles
        together = self._is_packed and particles > 1 and self._cost is not None
        trees = self._all_drafted(pending, ready, uses_drafter=uses_drafter, together=together)
        if self._cost is not None:
            cost = self._cost.beside(company_of(self._model))
            trees = self._worthwhile(cost, pending, trees, ready, together=together)
        self._time += perf_counter() - began
        return trees

    def _observe(
        self, pending: Sequence[Growing], trees: Sequence[DraftTree], rows: Sequence[Logits], seconds: float
    ) -> None:
        """Let the drafters observe the logits of the next tokens of the sequences that ran, and record the passes."""
        began = perf_counter()
        nodes = 0
        for each, tree, row in zip(pending, trees, rows, strict=True):
            context, ahead = each.context, each.context.ahead
            self._explored.leave(context)
            if ahead is None or not len(tree):  # or the session could not look ahead
                verified = Verified(len(context), DraftTree(), row[None])
            else:
                verified = Verified(len(context), tree, ahead.logits)
                self._explored.add(context, tree)
                nodes += len(tree)
            drafting = self._draftings.get(context)
            if drafting is not None:
                drafting.observe(verified)
        self._passes += nodes > 0
        passes = 1 if self._is_packed else len(pending)
        self._runs.append(_TokenPasses(passes, self._needed / passes, (self._needed + nodes) / passes, seconds))
        self._time += perf_counter() - began

    def split(self, context: Context, taken: Sequence[tuple[int, float]], children: Sequence[Context]) -> None:
        """As ``ExploredTrees.split``; each of the tokens comes with its log-probability."""
        position = self._explored.split(context, [token for token, _ in taken], children)
        if position is not None:
            self._dictated.learn(position.tree, position.node, taken)

    def drop(self, context: Context) -> None:
        """Stop drafting for a sequence."""
        self._explored.leave(context)
        drafting = self._draftings.pop(context, None)
        if drafting is not None:
            drafting.close()

    def close(self) -> None:
        """Close all draftings."""
        for drafting in self._draftings.values():
            drafting.close()
        self._draftings.clear()

    def stats(self) -> DraftStats:
        """The statistics of all sequences together; a token that several of them took counts once."""
        return DraftStats(
            passes=self._passes,
            lengths=self._explored.lengths(),
            sources=self._explored.sources(),
            saved_forwards=self._saved,
            saved_s=self._saved_seconds(),
            time_draft_s=self._time,
        )

    def _all_drafted(
        self, pending: Sequence[Growing], ready: Sequence[Growing], *, uses_drafter: bool, together: bool
    ) -> list[DraftTree]:
        """The draft tree of each sequence; all empty if they save a pass only together, and one of them has none."""
        trees: list[DraftTree] = []
        if not together or all(self._explored.height(each.context) for each in ready):
            for each in pending:
                tree = self._drafted(each, uses_drafter=uses_drafter)
                if together and not len(tree):
                    break
                trees.append(tree)
        return trees if len(trees) == len(pending) else [DraftTree() for _ in pending]

    def _drafted(self, each: Growing, *, uses_drafter: bool) -> DraftTree:
        """The draft tokens of the drafter that the grammar allows, and dictated text after them."""
        if each.remaining <= 0 or (self._is_packed and not each.context.branches):
            return DraftTree()
        budget = self._speculation.budget
        tree = DraftTree()
        state = self._state(each) if uses_drafter else None
        if state is not None:
            tree = self._drafting(each.context).propose(each.context, state, budget)
        if len(tree):
            tree = merged_tree([tree])  # without distributions: draft tokens are compared with the tokens taken
            # A forced token counts as dictated text: here it needs a distribution, as every token does.
            own = self._speculation.drafter.name
            tree.sources[:] = [DICTATED if source == FORCED else source or own for source in tree.sources]
            tree = grammar_filtered(tree, each.matcher, remaining=each.remaining, budget=budget, forced=False)
        self._dictated.extend(tree, each.matcher, remaining=each.remaining, budget=budget)
        return tree

    def _worthwhile(
        self,
        cost: CostModel,
        pending: Sequence[Growing],
        trees: Sequence[DraftTree],
        ready: Sequence[Growing],
        *,
        together: bool,
    ) -> list[DraftTree]:
        """The parts of draft trees that are expected to save time."""
        budget = self._speculation.budget
        rows = [min(len(each.context.unseen), _MAX_PENDING_ROWS) for each in pending]
        pruned = [
            pruned_tree(
                tree, cost, budget, pending=sum(rows) if self._is_packed else own, branches=each.context.branches
            )
            for each, tree, own in zip(pending, trees, rows, strict=True)
        ]
        if not together:
            return pruned
        outlooks = [outlook(tree, each.particles) for each, tree in zip(pending, pruned, strict=True)]
        for each in ready:  # their logits are computed to the end of their tree
            height = self._explored.height(each.context)
            outlooks.append(Outlook([1.0] * height, [0] * height, each.particles))
        depth = joint_depth(outlooks, cost, pending=sum(rows), budget=budget)
        return [_cut(tree, depth) for tree in pruned]

    def _drafting(self, context: Context) -> GuardedDrafting:
        drafting = self._draftings.get(context)
        if drafting is None:
            drafting = self._draftings[context] = GuardedDrafting(self._speculation.drafter, context, self._task)
        return drafting

    def _state(self, each: Growing) -> DraftState | None:
        try:
            mask = self._masks.mask_for_drafter(each.matcher, each.remaining)
        except LimitExceeded:  # a sampler may never need this mask
            return None
        return DraftState(each.matcher.fork(), mask, each.remaining, position_kind(mask))

    def _saved_seconds(self) -> float:
        """Estimated time of the passes that were saved, less the cost of drafting and of wider passes."""
        if not self._saved or self._cost is None:
            return -self._time
        cost = self._cost
        # The first round runs the prompt.
        alone = [run.seconds / run.passes / cost.relative(round(run.rows)) for run in self._runs[1:] or self._runs]
        wider = sum(
            run.seconds * (1 - cost.relative(round(run.needed)) / cost.relative(round(run.rows))) for run in self._runs
        )
        return self._saved * float(np.median(alone)) - wider - self._time


def _cut(tree: DraftTree, depth: int) -> DraftTree:
    """The first ``depth`` tokens of every path."""
    depths = tree.token_tree().depths()
    if max(depths, default=-1) < depth:
        return tree
    return tree.kept(node for node, at in enumerate(depths) if at < depth)
