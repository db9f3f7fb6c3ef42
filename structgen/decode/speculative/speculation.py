"""Speculative decoding in the autoregressive loop: what users pass, and the rounds that draft and verify.

The loop itself does not change: it fills masks, projects and samples as ever.  A pass runs more rows than it must, and
where the loop comes to a draft token, the distribution that it needs is there.  So drafts change how many passes there
are and not what is written.  The exception are draft tokens that were sampled: they are verified (``Verifier``), which
keeps the distribution of the output but not its seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.speculative.cost import CostModel, pruned_tree
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

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.decode.step.distribution import Projection
    from structgen.decode.step.logits_row import LogitsRow
    from structgen.decode.step.sampler import Sampler
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import LanguageModel

__all__ = ["AnyDrafter", "Speculation", "SpeculationRounds", "as_speculation", "position_kind"]

_BUDGET: Final = 32
_REJECTION: Final = RecursiveRejection()


@final
@dataclass(frozen=True, slots=True)
class Speculation:
    """A drafter with all that can be said about its use.

    Attributes:
        drafter: what draft tokens.
        verifier: what decides which of the tokens is taken that a drafter drew at random.  One of chains decides on a
            drawn chain at once where grammar and budget alone say what may come, and leaves the rest to
            ``RecursiveRejection``.
        budget: the most tokens that are run in one pass beside those that must be.
        cost: what rows of a pass cost: tokens are only run where they are expected to pay.  None runs all that are
            drafted.

    Raises:
        ValueError: ``budget`` is below 1.
        TypeError: one of them is something else.
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
        """What decides on single positions."""
        return self.verifier if isinstance(self.verifier, Verifier) else _REJECTION

    @property
    def replaced(self) -> bool:
        """Whether tokens have to be drawn with replacement."""
        return isinstance(self.verifier, Verifier) and self.verifier.replaced

    def cost_of(self, model: LanguageModel) -> CostModel | None:
        """What rows cost ``model``; None where all that is drafted is run."""
        return CostModel.assumed(model) if self.cost == "assumed" else self.cost


AnyDrafter: TypeAlias = Drafter | Speculation | Literal["auto"] | None
"""What draft tokens tokens: ``"auto"`` chooses, None is nothing."""


def as_speculation(drafter: AnyDrafter) -> Speculation | None:
    """Return what ``drafter`` stands for.

    Raises:
        TypeError: it is none.
    """
    if drafter is None or isinstance(drafter, Speculation):
        return drafter
    if isinstance(drafter, Drafter):
        return Speculation(drafter)
    if drafter == "auto":
        # Imported here: it takes all that needs no model, and is not wanted where None is.
        from structgen.decode.speculative.drafters.auto import Auto

        return Speculation(Auto(), cost="assumed")
    raise TypeError(
        f"drafter: expected a Drafter, a Speculation, 'auto' or None, found {type(drafter).__name__}; "
        "a language model drafts through DraftModel(model)"
    )


_STREAM: Final = 1
"""The random numbers of drafts come from another stream than the sampler's."""

_MAX_SAMPLED: Final = 16
_PENDING: Final = 64
"""A prompt has more rows than this; what one more adds then, a model of costs need not tell."""
_BITS: Final = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint32)


class _TimedPass(NamedTuple):
    """A forward pass: rows that it had to run, rows that it ran, and how long it took."""

    needed: int
    rows: int
    seconds: float


@final
class SpeculationRounds:
    """The draft tokens for one output, and the passes that they were run in.

    Attributes:
        tree: what is to be run, or was run last; None for nothing.

    Args:
        speculation: how to draft.
        context: the prompt, and what stands of the output.
        constraint: what the output is a member of.
        sampler: how its tokens are chosen.
        seed: of the output.
    """

    def __init__(
        self, speculation: Speculation, context: Context, constraint: Constraint, sampler: Sampler, seed: int
    ) -> None:
        self._speculation = speculation
        self._choice = VerifiedChoice(speculation.verifier, speculation.alone, sampler)
        self._cost = speculation.cost_of(context.model)
        self._assumed = self._cost or CostModel.assumed(context.model)  # for what was saved
        generator = np.random.Generator(np.random.PCG64([seed, _STREAM]))
        self._task = DraftTask(constraint, sampler, len(context), generator)
        self._drafting: GuardedDrafting | None = None  # begun before the first pass: not all outputs have one
        self.tree: DraftTree | None = None
        self._has_drawn = False
        self._pending = 0  # rows that the pass has in any case
        self._start = 0  # how many tokens stood before the tree
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()
        self._passes = 0
        self._saved = 0
        self._run: list[_TimedPass] = []
        self._time = 0.0

    def propose(self, context: Context, matcher: Matcher, mask: NDArray[np.int32], remaining: int) -> None:
        """Draft the next tokens, for the forward pass that comes now.

        Args:
            context: the prompt and the output so far.
            matcher: where the output stands in its grammar.
            mask: what may come next.
            remaining: tokens that are left of the budget.
        """
        self.tree = None
        self._has_drawn = False
        self._pending = len(context.unseen)
        if remaining <= 1 or not context.looks_ahead:  # nothing follows the token of this pass, or it costs more
            return
        began = perf_counter()
        if self._drafting is None:
            self._drafting = GuardedDrafting(self._speculation.drafter, context, self._task)
        allowed = mask.view()
        allowed.flags.writeable = False
        state = DraftState(matcher.fork(), allowed, remaining, position_kind(allowed))
        budget = self._speculation.budget
        tree = self._drafting.propose(context, state, budget)
        if len(tree):
            tree.sources[:] = [source or self._speculation.drafter.name for source in tree.sources]
            # Which of them a distribution with replacement gave may not decide how many there are.
            most = budget if not self._speculation.replaced else _MAX_SAMPLED * (1 + len(tree))
            tree = grammar_filtered(tree, matcher, remaining=remaining, budget=most)
        if len(tree) and self._cost is not None:
            pending = min(self._pending, _PENDING)
            tree = pruned_tree(tree, self._cost, budget, pending=pending, branches=context.branches)
        if len(tree):
            self.tree = tree
            self._has_drawn = bool(tree.drawn)
        self._time += perf_counter() - began

    def observe(self, context: Context, row: LogitsRow, seconds: float) -> None:
        """Take in what a forward pass told.

        Args:
            context: as in ``propose``, with the look ahead.
            row: the logits of the next token.
            seconds: what the pass took.
        """
        began = perf_counter()
        ahead, tree = context.ahead, self.tree
        if ahead is None:
            self.tree = None
            verified = Verified(len(context), DraftTree(), LogitsRows.of(row))
        else:
            verified = Verified(len(context), tree or DraftTree(), ahead.told)
        size = 0 if self.tree is None else len(self.tree)
        self._start = len(context)
        self._run.append(_TimedPass(self._pending, self._pending + size, seconds))
        if self.tree is not None:
            self._passes += 1
            self._drafted.update(source for source in self.tree.sources if source != FORCED)
        if self._drafting is not None:
            self._drafting.observe(verified)
        self._time += perf_counter() - began

    @property
    def has_drawn(self) -> bool:
        """Whether some of the last draft tokens were drawn, so that ``choose`` may have a say."""
        return self._has_drawn

    def spare(self) -> None:
        """A choice needed no pass, for its distribution was known."""
        self._saved += 1

    def settle(self, context: Context) -> None:
        """Count what was taken of the last tree, which no more tokens are compared with."""
        tree, self.tree = self.tree, None
        if tree is None:
            return
        node, length = ROOT, 0
        for token in context.tokens[self._start :]:
            child = tree.child(node, token)
            if child is None:
                break
            node, length = child, length + 1
            if tree.sources[node] != FORCED:
                self._accepted[tree.sources[node]] += 1
        self._lengths[length] += 1

    def finish(self, context: Context) -> None:
        """The output is complete; it may still be taken back and go on."""
        self.settle(context)
        drafting = self._drafting
        if drafting is not None:
            drafting.close()
            if not drafting.is_dropped:  # else it would be begun anew, and fail again
                self._drafting = None

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
        """Choose the next token where draft tokens for it were drawn.

        An index into the projection, None where none were.

        Args:
            projection: the distribution of the next token.
            context: the prompt and the output so far.
            matcher: where the output stands in its grammar.
            remaining: tokens that are left of the budget.
            generator: the sampler's.
            is_plain: see ``Position``.
        """
        ahead, tree = context.ahead, self.tree
        if ahead is None or tree is None or not self._has_drawn:
            return None
        tokens = context.tokens[ahead.start :]
        nodes = ahead.path(tokens)
        if len(nodes) < len(tokens):
            return None
        node = nodes[-1] if nodes else ROOT
        return self._choice.index(
            VerifierPosition(projection, tree, node, ahead, matcher, remaining, is_plain), generator
        )

    def stats(self) -> DraftStats:
        """What it came to."""
        sources = {name: SourceStats(drafted, self._accepted[name]) for name, drafted in sorted(self._drafted.items())}
        return DraftStats(
            passes=self._passes,
            lengths=dict(sorted(self._lengths.items())),
            sources=sources,
            saved_forwards=self._saved,
            saved_s=self._saved_seconds(),
            time_draft_s=self._time,
        )

    def _saved_seconds(self) -> float:
        """What the passes that were not needed would have taken, less what drafts cost."""
        relative = self._assumed.relative
        wider = sum(each.seconds * (1 - relative(each.needed) / relative(each.rows)) for each in self._run)
        if not self._saved:
            return -wider - self._time
        # The first pass is over the prompt.
        one = float(np.median([each.seconds / relative(each.rows) for each in self._run[1:] or self._run]))
        return self._saved * one - wider - self._time


def position_kind(mask: NDArray[np.int32]) -> int:
    """A number for the kind of position that a mask belongs to: how many tokens it allows, to a power of two.

    One token, a few, the digits of a number, the keys of an object and the inside of a text are kinds of their own, and
    nothing but the mask is looked at.
    """
    return int(_BITS[mask.view(np.uint8)].sum()).bit_length()
