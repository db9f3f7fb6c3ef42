"""Drafts for sequences that are written side by side, and the text that the grammar dictates to all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.sampling.shared_pass import ExploredTrees, Outlook, joint_depth, outlook
from structgen.decode.speculative.cost import pruned_tree
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
    """``Auto`` for as long as one particle is written, and nobody while several are.

    A pass is spared only where all particles that grow together are drafted right, which mostly fails for any but the
    text that the grammar dictates; that is looked at after all of them in any case, and costs next to nothing.
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


DICTATED: Final = "dictated text"
"""The source of such tokens."""

_PRIOR: Final = 0.98
_STRENGTH: Final = 10.0
"""The prior: so many tokens are assumed, this share of them spelled as by the tokenizer."""


@final
class DictatedText:
    """Adds such text to the draft tokens of a run, as likely as it has proved to be spelled so.

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
        """Add what is dictated to a tree: at its root, and after the ends of its paths.

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
                break  # the limits are for outputs, not for draft tokens
            finally:
                matcher.rollback(matcher.history_length - before)

    def learn(self, tree: DraftTree, node: int, ways: Sequence[tuple[int, float]]) -> None:
        """Count how much of what came after a node is spelled as drafted.

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


_DRAFT_STREAM: Final = 1
_MAX_PENDING_ROWS: Final = 64
"""A prompt has more rows than this; what one more adds then, a model of costs need not tell."""


class Growing(NamedTuple):
    """A sequence that is being written.

    Attributes:
        context: the prompt and the sequence.
        matcher: where it stands in the grammar.
        remaining: tokens that are left of its budget.
        particles: how many it stands for.
    """

    context: Context
    matcher: Matcher
    remaining: int
    particles: int


class _TokenPasses(NamedTuple):
    """Passes for one more token.

    Attributes:
        passes: how many.
        needed: rows that each of them had to run, on average.
        rows: rows that it ran.
        seconds: of all of them.
    """

    passes: int
    needed: float
    rows: float
    seconds: float


@final
class BranchDrafts:
    """The draft tokens for the sequences of one run.

    Each has a ``Drafting`` of its own, which begins when it is first asked and goes along with the context.

    Args:
        speculation: how to draft.
        problem: what is sampled.
        masks: of the run.
        is_packed: whether one pass runs all sequences that need one.
    """

    def __init__(self, speculation: Speculation, problem: Problem, masks: MaskCache, *, is_packed: bool) -> None:
        self._speculation = speculation
        self._asks_for = 1 if isinstance(speculation.drafter, AutoParticles) else None  # the most particles
        self._cost = speculation.cost_of(problem.model)
        self._masks = masks
        self._is_packed = is_packed
        generator = np.random.Generator(np.random.PCG64([0, _DRAFT_STREAM]))
        prompt_tokens = len(problem.prompt) - len(problem.begun)
        self._task = DraftTask(problem.constraint, Multinomial(), prompt_tokens, generator)
        self._dictated = DictatedText(problem.constraint)
        self._draftings: dict[Context, GuardedDrafting] = {}
        self._looked = ExploredTrees()
        self._passes = 0
        self._saved = 0
        self._needed = 0  # rows that are run in any case
        self._runs: list[_TokenPasses] = []
        self._time = 0.0

    def run(self, branches: Sequence[Branch], remaining: Sequence[int], counts: Sequence[int], passes: Passes) -> None:
        """Give every branch its logits: known ones, else by passes that look ahead.

        Args:
            branches: all that grow together.
            remaining: for each, the tokens that are left of the budget.
            counts: for each, how many next tokens are sampled.
            passes: runs forward passes.
        """
        pending: list[tuple[Branch, Growing]] = []
        ready: list[Growing] = []
        for branch, left, count in zip(branches, remaining, counts, strict=True):
            if branch.context is None:
                continue
            growing = Growing(branch.context, branch.matcher, left, count)
            if branch.logits is None:
                branch.logits = next(map(on_host, branch.context.known(1)), None)
            if branch.logits is None:
                pending.append((branch, growing))
            else:
                ready.append(growing)
        self.spare(len(ready), len(pending))
        if not pending:
            return
        growing_now = [growing for _, growing in pending]
        trees = self.propose(growing_now, ready)
        before = passes.time_s
        rows = passes.run(
            [growing.context for growing in growing_now],
            [tree.token_tree() if len(tree) else None for tree in trees],
        )
        for (branch, _), row in zip(pending, rows, strict=True):
            branch.logits = row
        self.observe(growing_now, trees, rows, passes.time_s - before)

    def propose(self, pending: Sequence[Growing], ready: Sequence[Growing]) -> list[DraftTree]:
        """Draft the next tokens of sequences, for the passes that come now.

        Args:
            pending: what is run.
            ready: what grows beside them and need not be run, for its distribution is known.
        """
        began = perf_counter()
        self._needed = sum(len(each.context.unseen) for each in pending)
        particles = sum(each.particles for each in (*pending, *ready))
        asks = self._asks_for is None or particles <= self._asks_for
        together = self._is_packed and particles > 1 and self._cost is not None
        trees = self._all_drafted(pending, ready, asks=asks, together=together)
        if self._cost is not None:
            trees = self._worthwhile(self._cost, pending, trees, ready, together=together)
        self._time += perf_counter() - began
        return trees

    def observe(
        self, pending: Sequence[Growing], trees: Sequence[DraftTree], distributions: Sequence[Logits], seconds: float
    ) -> None:
        """Take in what the passes told.

        Args:
            pending: what was run.
            trees: what was looked at after each, if the session could.
            distributions: of their next tokens.
            seconds: that it took.
        """
        began = perf_counter()
        looked = 0
        for each, tree, distribution in zip(pending, trees, distributions, strict=True):
            context, ahead = each.context, each.context.ahead
            self._looked.leave(context)
            if ahead is None or not len(tree):
                verified = Verified(len(context), DraftTree(), distribution[None])
            else:
                verified = Verified(len(context), tree, ahead.told)
                self._looked.look(context, tree)
                looked += len(tree)
            drafting = self._draftings.get(context)
            if drafting is not None:
                drafting.observe(verified)
        self._passes += looked > 0
        passes = 1 if self._is_packed else len(pending)
        self._runs.append(_TokenPasses(passes, self._needed / passes, (self._needed + looked) / passes, seconds))
        self._time += perf_counter() - began

    def spare(self, ready: int, pending: int) -> None:
        """Of so many sequences distributions were known, while so many others were to be run."""
        self._saved += (not pending and ready > 0) if self._is_packed else ready

    def split(self, context: Context, ways: Sequence[tuple[int, float]], children: Sequence[Context]) -> None:
        """A sequence goes on in several ways.

        Args:
            context: that of the sequence, which one of ``children`` may be.
            ways: tokens, none twice, each with its log-probability.
            children: the contexts that go on with them.
        """
        place = self._looked.split(context, [token for token, _ in ways], children)
        if place is not None:
            self._dictated.learn(place.tree, place.node, ways)

    def drop(self, context: Context) -> None:
        """Draft token no more for a sequence."""
        self._looked.leave(context)
        drafting = self._draftings.pop(context, None)
        if drafting is not None:
            drafting.close()

    def close(self) -> None:
        """The run is over."""
        for drafting in self._draftings.values():
            drafting.close()
        self._draftings.clear()

    def stats(self) -> DraftStats:
        """What it came to: of all sequences together, tokens that several of them took counted once."""
        return DraftStats(
            passes=self._passes,
            lengths=self._looked.lengths(),
            sources=self._looked.sources(),
            saved_forwards=self._saved,
            saved_s=self._saved_seconds(),
            time_draft_s=self._time,
        )

    def _all_drafted(
        self, pending: Sequence[Growing], ready: Sequence[Growing], *, asks: bool, together: bool
    ) -> list[DraftTree]:
        """What is drafted of each; nothing where they need it together and of one of them nothing is known."""
        trees: list[DraftTree] = []
        if not together or all(self._looked.height(each.context) for each in ready):
            for each in pending:
                tree = self._drafted(each, asks=asks)
                if together and not len(tree):
                    break
                trees.append(tree)
        return trees if len(trees) == len(pending) else [DraftTree() for _ in pending]

    def _drafted(self, each: Growing, *, asks: bool) -> DraftTree:
        """What the drafter draft tokens and the grammar allows, and what the grammar dictates at the ends of it."""
        if each.remaining <= 0 or (self._is_packed and not each.context.branches):
            return DraftTree()
        budget = self._speculation.budget
        tree = DraftTree()
        state = self._state(each) if asks else None
        if state is not None:
            tree = self._drafting(each.context).propose(each.context, state, budget)
        if len(tree):
            tree = merged_tree(
                [tree]
            )  # without distributions: tokens are compared with what is taken, however they were found
            tree.sources[:] = [self._source(source) for source in tree.sources]
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
        """The parts of trees that are expected to pay."""
        budget = self._speculation.budget
        rows = [min(len(each.context.unseen), _MAX_PENDING_ROWS) for each in pending]
        kept = [
            pruned_tree(
                tree, cost, budget, pending=sum(rows) if self._is_packed else own, branches=each.context.branches
            )
            for each, tree, own in zip(pending, trees, rows, strict=True)
        ]
        if not together:
            return kept
        outlooks = [outlook(tree, each.particles) for each, tree in zip(pending, kept, strict=True)]
        for each in ready:  # for as long as the tree that told its distribution goes on
            height = self._looked.height(each.context)
            outlooks.append(Outlook([1.0] * height, [0] * height, each.particles))
        depth = joint_depth(outlooks, cost, pending=sum(rows), budget=budget)
        return [_cut(tree, depth) for tree in kept]

    def _source(self, source: str) -> str:
        """What a node of the drafter's tree counts as.

        Nothing is taken without a distribution here, dictated or not.
        """
        return DICTATED if source == FORCED else source or self._speculation.drafter.name

    def _drafting(self, context: Context) -> GuardedDrafting:
        drafting = self._draftings.get(context)
        if drafting is None:
            drafting = self._draftings[context] = GuardedDrafting(self._speculation.drafter, context, self._task)
        return drafting

    def _state(self, each: Growing) -> DraftState | None:
        try:
            mask = self._masks.drafting(each.matcher, each.remaining)
        except LimitExceeded:  # there are samplers that never ask for a mask
            return None
        return DraftState(each.matcher.fork(), mask, each.remaining, position_kind(mask))

    def _saved_seconds(self) -> float:
        """What the passes that were not needed would have taken, less what drafts cost."""
        if not self._saved or self._cost is None:
            return -self._time
        cost = self._cost
        # The first run is over the prompt.
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
