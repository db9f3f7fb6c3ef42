"""Speculative decoding in the autoregressive loop: what users pass, and the rounds that draft and verify.

The loop itself does not change: it fills masks, renormalises and samples.  A pass runs extra rows for draft tokens, so
when the loop arrives at a draft token, the logits after it are already computed.  Drafts change the number of passes,
not the output.  Sampled draft tokens are the exception: a ``Verifier`` accepts or rejects them, which keeps the
distribution of the output but not the output of a seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.speculative.cost import CostModel, company_of, expected_saving, pruned_tree
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.speculative.grammar_walk import grammar_filtered
from structgen.decode.speculative.verifier import (
    ChainVerifier,
    RecursiveRejection,
    VerifiedChoice,
    Verifier,
    VerifierPosition,
)
from structgen.decode.step.logits_row import LogitsRows
from structgen.decode.step.result import DraftStats, SourceStats
from structgen.errors import ArgumentError, found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.decode.step.distribution import Projection
    from structgen.decode.step.logits_row import LogitsRow
    from structgen.decode.step.sampler import Sampler
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import LanguageModel

__all__ = ["AnyDrafter", "DraftCounts", "Speculation", "SpeculationRounds", "as_speculation", "position_kind"]

_BUDGET: Final = 32
_REJECTION: Final = RecursiveRejection()


@final
@dataclass(frozen=True, slots=True)
class Speculation:
    """A drafter and how its drafts are verified and run.

    Attributes:
        drafter: proposes draft tokens.
        verifier: accepts or rejects sampled draft tokens.  A ``ChainVerifier`` verifies a sampled chain at once if only
            grammar and budget restrict it; ``RecursiveRejection`` verifies the rest.
        budget: the largest number of draft and forced tokens in one pass.
        cost: the cost of rows in passes of one sequence: draft tokens are run only if they are expected to save time,
            also for the sequences that share the pass.  None runs all of them.

    Raises:
        ValueError: ``budget`` is below 1.
        TypeError: the drafter or the verifier has another type.
    """

    drafter: Drafter
    verifier: Verifier | ChainVerifier = _REJECTION
    budget: int = _BUDGET
    cost: CostModel | Literal["assumed"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.drafter, Drafter):
            raise TypeError(f"Speculation: expected a Drafter, found {type(self.drafter).__name__}")
        if not isinstance(self.verifier, (Verifier, ChainVerifier)):
            raise TypeError(f"Speculation: expected a Verifier, found {type(self.verifier).__name__}")
        if self.budget < 1:
            raise ValueError(
                f"Speculation: budget must be at least 1; found {self.budget!r}; drafter=None drafts nothing"
            )

    @property
    def alone(self) -> Verifier:
        """The verifier of single positions."""
        return self.verifier if isinstance(self.verifier, Verifier) else _REJECTION

    @property
    def replaced(self) -> bool:
        """Whether tokens must be sampled with replacement."""
        return isinstance(self.verifier, Verifier) and self.verifier.replaced

    def cost_of(self, model: LanguageModel) -> CostModel | None:
        """Return the cost of rows of ``model`` in passes of one sequence; None if all draft tokens are run."""
        return CostModel.assumed(model) if self.cost == "assumed" else self.cost


AnyDrafter: TypeAlias = Drafter | Speculation | Literal["auto"] | None
"""A drafter: ``"auto"`` is ``Auto()``, None drafts nothing."""


def as_speculation(drafter: AnyDrafter) -> Speculation | None:
    """Return the ``Speculation`` of an argument ``drafter``.

    Raises:
        ArgumentError: it is none of the allowed types.
    """
    if drafter is None or isinstance(drafter, Speculation):
        return drafter
    if isinstance(drafter, Drafter) and not isinstance(drafter, type):
        return Speculation(drafter)
    if drafter == "auto":
        # Imported here: it loads all drafters of the core, which drafter=None does not need.
        from structgen.decode.speculative.drafters.auto import Auto

        return Speculation(Auto(), cost="assumed")
    if isinstance(drafter, str):
        remedy = "names are for the command line; pass an object, such as sg.drafters.PromptLookup()"
    elif isinstance(drafter, type):
        remedy = f"pass an object: {drafter.__name__}(...)"
    else:
        remedy = "a language model drafts through sg.drafters.DraftModel(model)"
    raise ArgumentError(
        "drafter", "expected a Drafter, a Speculation, 'auto' or None", evidence=found(drafter), remedy=remedy
    )


_STREAM: Final = 1
"""The stream of random numbers for drafts; the sampler has another."""

_MAX_SAMPLED: Final = 16
_PENDING: Final = 64
"""A prompt has more rows; the cost of one more row hardly changes beyond this."""
_ASKING: Final = 0.15
"""The time that drafting takes, in passes over one row: 3 ms, where a pass of the embedded model takes 18."""
_USUAL_RATE: Final = 0.7
_VAIN: Final = 4
_LONGEST_REST: Final = 4
_DOUBT: Final = _VAIN * _LONGEST_REST
_BITS: Final = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint32)


class _TimedPass(NamedTuple):
    """A forward pass: what the rows that it needed cost, what those cost that it ran, and its time."""

    needed: float
    ran: float
    has_drafts: bool
    seconds: float


@final
class DraftCounts:
    """Counts of the draft tokens of one output: their cost and their savings.

    Attributes:
        saved: choices that needed no pass.
        seconds: time spent on proposing, pruning and learning.
    """

    def __init__(self) -> None:
        self._passes: list[_TimedPass] = []
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()
        self.saved = 0
        self.seconds = 0.0

    def ran(self, tree: DraftTree | None, needed: int, cost: CostModel, seconds: float) -> None:
        """Count a pass that ran a tree, if any, with ``needed`` other rows; ``cost`` is that of its rows."""
        rows = needed if tree is None else needed + len(tree)
        self._passes.append(_TimedPass(cost.relative(needed), cost.relative(rows), rows > needed, seconds))
        if tree is not None:
            self._drafted.update(source for source in tree.sources if source != FORCED)

    def accepted(self, tree: DraftTree, nodes: list[int]) -> None:
        """Count the accepted tokens of a tree."""
        self._accepted.update(tree.sources[node] for node in nodes if tree.sources[node] != FORCED)
        self._lengths[len(nodes)] += 1

    def stats(self) -> DraftStats:
        """Return the statistics of the output up to now."""
        return DraftStats(
            passes=sum(each.has_drafts for each in self._passes),
            lengths=dict(sorted(self._lengths.items())),
            sources={name: SourceStats(count, self._accepted[name]) for name, count in sorted(self._drafted.items())},
            saved_forwards=self.saved,
            saved_s=self._saved_seconds(),
            time_draft_s=self.seconds,
        )

    def _saved_seconds(self) -> float:
        """Return the time of the passes that were saved, less the time that drafts cost."""
        wider = sum(each.seconds * (1 - each.needed / each.ran) for each in self._passes)
        if not self.saved:
            return -wider - self.seconds
        # The first pass is over the prompt.
        one = float(np.median([each.seconds / each.ran for each in self._passes[1:] or self._passes]))
        return self.saved * one - wider - self.seconds


@final
class SpeculationRounds:
    """The draft tokens of one output, and the passes that run them.

    Attributes:
        tree: the draft tree of the next or the last pass; None for no draft tokens.
        has_sampled: whether some of its tokens were sampled, so that ``choose`` may choose.
        counts: what the drafts cost, and what they saved.
    """

    def __init__(
        self, speculation: Speculation, context: Context, constraint: Constraint, sampler: Sampler, seed: int
    ) -> None:
        self._speculation = speculation
        self._choice = VerifiedChoice(speculation.verifier, speculation.alone, sampler)
        cost = speculation.cost_of(context.model)
        self._is_own = speculation.cost != "assumed"  # then the caller knows better
        self._rests = None if self._is_own or cost is None else _Rests()
        self._is_asked = False  # whether the drafter knows of the next pass
        self._asking = _ASKING  # the time of drafting, in passes
        self.counts = DraftCounts()
        self._runs_all = cost is None
        self._alone = self._cost = cost or CostModel.assumed(context.model)
        generator = np.random.Generator(np.random.PCG64([seed, _STREAM]))
        self._task = DraftTask(constraint, sampler, len(context), generator)
        self._drafting: GuardedDrafting | None = None  # started before the first pass, which not all outputs have
        self.tree: DraftTree | None = None
        self.has_sampled = False
        self._pending = 0  # rows that the pass needs without drafts
        self._start = 0  # the number of tokens before the tree

    def propose(self, context: Context, matcher: Matcher, mask: NDArray[np.int32], remaining: int) -> None:
        """Draft tokens for the next forward pass, within the budget that remains; ``mask`` allows the next token."""
        self.tree = None
        self.has_sampled = False
        self._pending = len(context.unseen)
        company = company_of(context.model)
        self._cost = self._alone.beside(company)  # the others come and go
        # The pass of all begins when the last one has drafted, since their threads run in turn.
        sequences = 1 + company.others
        self._asking = _ASKING * sequences / self._alone.relative(sequences)
        budget = min(self._speculation.budget, company.room - 1)
        # No second token fits, or drafts would cost more.
        if min(remaining - 1, budget) < 1 or not context.looks_ahead or not self._may_pay(budget):
            return
        began = perf_counter()
        kind = position_kind(mask)
        is_doubtful = not _usual_drafts_pay(self._cost, budget, self._asking)
        self._is_asked = self._rests is None or not self._rests.skip(kind, is_doubtful=is_doubtful)
        if not self._is_asked:
            return
        if self._drafting is None:
            self._drafting = GuardedDrafting(self._speculation.drafter, context, self._task)
        allowed = mask.view()
        allowed.flags.writeable = False
        pending = min(self._pending, _PENDING)
        least = 0.0 if self._runs_all else self._cost.least(pending, budget)
        state = DraftState(matcher.fork(), allowed, remaining, kind, least)
        tree = self._drafting.propose(context, state, budget)
        if len(tree):
            tree.sources[:] = [source or self._speculation.drafter.name for source in tree.sources]
            # With replacement, the number of children must not depend on which tokens were sampled.
            most = budget if not self._speculation.replaced else _MAX_SAMPLED * (1 + len(tree))
            tree = grammar_filtered(tree, matcher, remaining=remaining, budget=most, least=least)
        if len(tree) and not self._runs_all:
            tree = pruned_tree(tree, self._cost, budget, pending=pending, branches=context.branches)
        if len(tree):
            self.tree = tree
            self.has_sampled = bool(tree.sampled)
        if self._rests is not None:
            self._rests.note(kind, pays=len(tree) > 0 and self._saves(tree, pending), is_doubtful=is_doubtful)
        self.counts.seconds += perf_counter() - began

    def _may_pay(self, budget: int) -> bool:
        """Whether drafting may pay, given the sequences that share the pass."""
        return self._is_own or self._runs_all or self._cost.may_pay(budget)

    def _saves(self, tree: DraftTree, pending: int) -> bool:
        """Whether running a tree is expected to save more time than drafting it takes."""
        return self._runs_all or expected_saving(tree, self._cost, pending=pending) > self._asking

    def observe(self, context: Context, row: LogitsRow, seconds: float) -> None:
        """Learn from a forward pass of ``seconds``, which returned ``row`` for the next token."""
        began = perf_counter()
        ahead = context.ahead
        if ahead is None:
            self.tree = None
        logits = LogitsRows.of(row) if ahead is None else ahead.logits
        verified = Verified(len(context), self.tree or DraftTree(), logits)
        self._start = len(context)
        self.counts.ran(self.tree, self._pending, self._cost, seconds)
        if self._drafting is not None and self._is_asked:
            self._drafting.observe(verified)
        self.counts.seconds += perf_counter() - began

    def settle(self, context: Context) -> list[int]:
        """Count the accepted tokens of the last tree; return their positions in the output."""
        tree, self.tree = self.tree, None
        if tree is None:
            return []
        nodes = tree.follow(context.tokens[self._start :])
        self.counts.accepted(tree, nodes)
        first = self._start - self._task.prompt_tokens
        return [first + depth for depth, node in enumerate(nodes) if tree.sources[node] != FORCED]

    def finish(self, context: Context) -> list[int]:
        """Settle, and free the drafter of a complete output; the output may still be taken back and go on."""
        accepted = self.settle(context)
        if self._drafting is not None:
            self._drafting.close()
            if not self._drafting.is_dropped:  # else it would be started again, and fail again
                self._drafting = None
        return accepted

    def choose(
        self,
        projection: Projection,
        context: Context,
        matcher: Matcher,
        remaining: int,
        generator: np.random.Generator,
        *,
        is_plain: bool,
    ) -> int | None:
        """Choose the next token if draft tokens for it were sampled; see ``VerifierPosition`` for the arguments.

        Return an index into the masked distribution; None if no draft tokens were sampled.
        """
        ahead, tree = context.ahead, self.tree
        if ahead is None or tree is None or not self.has_sampled:
            return None
        tokens = context.tokens[ahead.start :]
        nodes = ahead.path(tokens)
        if len(nodes) < len(tokens):
            return None
        position = VerifierPosition(projection, tree, nodes[-1] if nodes else ROOT, ahead, matcher, remaining, is_plain)
        return self._choice.index(position, generator)


class _Rests:
    """Passes in which a drafter is skipped, because nothing that it drafts pays.

    After four passes of one kind of position without draft tokens that pay for the asking, one pass of two is skipped,
    after eight three of four, and so on up to fifteen of sixteen.  Draft tokens that pay end it.  Where the usual draft
    tokens do not pay, fifteen of sixteen are skipped from the start.  Passes are counted and not timed, so a run can be
    repeated.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, int]] = {}  # by kind: passes that did not pay, and how many are to be skipped

    def skip(self, kind: int, *, is_doubtful: bool) -> bool:
        """Whether to skip the next pass."""
        vain, left = self._of.get(kind, (0, _rest(_DOUBT) if is_doubtful else 0))
        self._of[kind] = vain, max(left - 1, 0)
        return left > 0

    def note(self, kind: int, *, pays: bool, is_doubtful: bool) -> None:
        """Note whether asking for a pass at this kind of position was worth its time."""
        vain = 0 if pays else max(self._of.get(kind, (0, 0))[0] + 1, _DOUBT if is_doubtful else 0)
        self._of[kind] = vain, _rest(vain)


def _rest(vain: int) -> int:
    """How many passes are skipped after this many that did not pay."""
    return (1 << min(vain // _VAIN, _LONGEST_REST)) - 1


@lru_cache(maxsize=4096)
def _usual_drafts_pay(cost: CostModel, budget: int, asking: float) -> bool:
    """Whether a chain of up to ``budget`` draft tokens is worth the time of drafting, in passes.

    Each is assumed to be accepted in 7 of 10 cases if the one before it is.
    """
    saved = np.cumsum(_USUAL_RATE ** np.arange(1, budget + 1))
    return bool((saved - (cost.relatives(1 + budget)[2:] - 1.0) > asking).any())


def position_kind(mask: NDArray[np.int32]) -> int:
    """Return the kind of position of a mask: the number of bits of the count of allowed tokens.

    So one token, a few, the digits of a number, the keys of an object and free text are kinds of their own.
    """
    return int(_BITS[mask.view(np.uint8)].sum()).bit_length()
