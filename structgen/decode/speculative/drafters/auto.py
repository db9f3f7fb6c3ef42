"""``Auto``, the default drafter of ``generate``, and ``Combined``: several drafters in one tree."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.acceptance import Calibration, as_prior
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics, StateCounts
from structgen.decode.speculative.drafters.prompt_lookup import PromptLookup
from structgen.decode.speculative.drafters.retrieval import DraftStore, Retrieval, pair_table
from structgen.decode.speculative.drafters.token_recycling import Successors, TokenRecycling
from structgen.engine import Vocabulary
from structgen.memory_cache import Held, entries_within, report_also

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = ["Auto", "Combined", "forget"]

_GRADES: Final = 8
_STRENGTH: Final = 3.0
_DOUBT: Final = 0.5
"""What counts of a drafter's confidence before anything is known of it: a draft that fails costs more than one that is
not made saves."""
_ALL: Final = -1
"""All kinds of positions together."""


@final
@dataclass(frozen=True)
class Combined(Drafter):
    """The draft tokens of several drafters in one tree.

    Every draft token is compared with the output later, whether a pass ran it or not.  Its confidence is how often such
    draft tokens were right: from the same drafter, with about the same confidence of the drafter, at the same kind of
    position, or at all positions as long as little is known of the kind.  So the tokens of a bad drafter lose their
    place in the tree, and win it back when it improves; at first, the confidence that a drafter reports is halved.

    Sampled draft tokens are treated as chosen ones and their distributions dropped: selecting among samples would
    change the distribution of the output.

    Attributes:
        drafters: the drafters; one that fails is dropped alone.
        calibration: measured acceptance of draft tokens; outputs that share it learn from each other.

    Raises:
        ValueError: there are no drafters, or two have the same name.
    """

    drafters: tuple[Drafter, ...]
    calibration: Calibration = field(default_factory=lambda: Calibration(strength=_STRENGTH))

    def __post_init__(self) -> None:
        names = [drafter.name for drafter in self.drafters]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"Combined: expected drafters with different names; found {names}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return " + ".join(drafter.name for drafter in self.drafters)

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _CombinedDrafting(
            [GuardedDrafting(drafter, context, task) for drafter in self.drafters], self.calibration
        )


@final
class _CombinedDrafting(Drafting):
    def __init__(self, draftings: list[GuardedDrafting], calibration: Calibration) -> None:
        self._draftings = draftings
        self._calibration = calibration
        self._start = 0
        self._proposed: list[tuple[str, DraftTree]] = []
        self._kind = 0

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._learn(context.tokens[self._start :])
        self._start, self._kind = len(context), state.kind
        together = DraftTree()
        for drafting in self._draftings:
            tree = drafting.propose(context, state, budget)
            if not len(tree):
                continue
            self._proposed.append((drafting.name, tree))
            sources = [source or drafting.name for source in tree.sources]
            confidences = [
                confidence if source == FORCED else self._measured(drafting.name, confidence)
                for source, confidence in zip(sources, tree.confidences, strict=True)
            ]
            together.include(tree, confidences, sources)
        return together

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        for drafting in self._draftings:
            drafting.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        for drafting in self._draftings:
            drafting.close()

    def _learn(self, came: tuple[int, ...]) -> None:
        """Compare the last draft tokens with the tokens of the output."""
        outcomes: list[tuple[Hashable, bool]] = []
        for name, tree in self._proposed:
            for parent, token in zip((ROOT, *tree.follow(came)), came, strict=False):
                outcomes += (
                    (key, tree.tokens[each] == token)
                    for each in tree.children(parent)
                    if tree.sources[each] != FORCED
                    for key in self._keys(name, tree.confidences[each])
                )
        self._calibration.record_all(outcomes)
        self._proposed = []

    def _measured(self, name: str, confidence: float) -> float:
        """The acceptance probability of a draft token at this kind of position."""
        here, everywhere = self._keys(name, confidence)
        prior = self._calibration.probability(everywhere, as_prior(_DOUBT * confidence))
        return self._calibration.probability(here, prior)

    def _keys(self, name: str, confidence: float) -> tuple[Hashable, Hashable]:
        """The kinds of a draft token: of its drafter and confidence at this kind of position, and anywhere."""
        grade = round(confidence * _GRADES)
        return (name, self._kind, grade), (name, _ALL, grade)


@final
@dataclass(frozen=True, slots=True)
class Auto(Drafter):
    """All drafters that need no model, combined.

    They draft the few tokens that the grammar allows, copies from the prompt and from earlier outputs, frequent tokens
    of the same grammar state, and the model's own predictions after the same token.

    The learned statistics belong to the vocabulary: all outputs of a process learn from each other, in any thread.
    They change how many forward passes an output takes, never the output; ``forget`` drops them.  They hold 32,768
    tokens of outputs, 16,384 n-grams, and as many states of each engine; less in proportion if ``cache_limits`` is
    below its default, and they start again when it changes so.
    """

    name = "auto"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _drafters_of(task.constraint.vocabulary).start(context, task)


def forget(vocabulary: Vocabulary | None = None) -> None:
    """Drop the statistics that ``Auto`` has learned for a vocabulary; None drops all."""
    with _lock:
        if vocabulary is None:
            _memories.clear()
        else:
            _memories.pop(vocabulary, None)


_TOKENS: Final = 1 << 15
_PAIRS: Final = 1 << 14
_STATES: Final = 1 << 14


class _Learned:
    """The statistics for a vocabulary, and the drafters that use them.

    Args:
        tokens: the largest number of tokens of outputs, which stands for the bound of the process.
    """

    def __init__(self, tokens: int) -> None:
        calibration = Calibration()
        pairs = pair_table(entries_within(_PAIRS))
        self.tokens = tokens
        self.successors = Successors()
        store, states = DraftStore(max_tokens=tokens), StateCounts(max_states=entries_within(_STATES))
        self.held = (store, pairs, states)
        self.drafters = Combined(
            (
                ForcedTokens(calibration=calibration),
                PromptLookup(calibration=calibration),
                Retrieval(store, distributions=pairs, calibration=calibration),
                GrammarStatistics(states, calibration=calibration),
                TokenRecycling(store=self.successors),
            )
        )


_lock: Final = threading.Lock()
_memories: Final[weakref.WeakKeyDictionary[Vocabulary, _Learned]] = weakref.WeakKeyDictionary()
"""The statistics for each vocabulary."""


def _drafters_of(vocabulary: Vocabulary) -> Combined:
    tokens = entries_within(_TOKENS)
    with _lock:
        learned = _memories.get(vocabulary)
        if learned is None or learned.tokens != tokens:
            learned = _memories[vocabulary] = _Learned(tokens)
        return learned.drafters


def _held() -> tuple[Held]:
    with _lock:
        memories = list(_memories.values())
    count = sum(len(each) for learned in memories for each in learned.held)
    size = sum(each.nbytes for learned in memories for each in (*learned.held, learned.successors))
    return (Held("draft statistics", count, size),)


report_also(_held)
