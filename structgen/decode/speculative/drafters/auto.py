"""The drafter that ``generate`` has unless one is given, and ``Combined``: several drafters in one tree."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics
from structgen.decode.speculative.drafters.prompt_lookup import PromptLookup
from structgen.decode.speculative.drafters.retrieval import Retrieval
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.engine import Vocabulary

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = ["Auto", "Combined", "forget"]

_GRADES: Final = 8
_STRENGTH: Final = 6.0


@final
@dataclass(frozen=True)
class Combined(Drafter):
    """All draft tokens of several drafters, in one tree.

    Every draft is later compared with what came, whether it was run or not: that costs nothing, since what came is
    known.  So the confidence of a draft token is how often draft tokens like it came true (the same drafter, the same
    kind of position, the same grade of what the drafter itself says), and drafters that draft token badly fade without
    a trial, those that begin to draft well come back without one.

    Drafters that draw their tokens from a distribution do not belong here: a tree that is chosen by what was drawn
    would not leave the distribution of the output alone.  Their distributions are dropped, so that their tokens are
    verified as chosen ones are.

    Attributes:
        drafters: what draft tokens; one that fails is dropped alone.
        calibration: what is known of draft tokens; outputs that share it learn from each other.

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
    def __init__(self, members: list[GuardedDrafting], calibration: Calibration) -> None:
        self._members = members
        self._calibration = calibration
        self._start = 0
        self._proposed: list[tuple[str, DraftTree]] = []
        self._kind = 0

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._learn(context.tokens[self._start :])
        self._start, self._kind = len(context), state.kind
        together = DraftTree()
        for member in self._members:
            tree = member.propose(context, state, budget)
            if not len(tree):
                continue
            self._proposed.append((member.name, tree))
            numbers = {ROOT: ROOT}
            for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
                source = tree.sources[node] or member.name
                confidence = tree.confidences[node]
                if source != FORCED:
                    confidence = self._calibration.probability(self._key(member.name, confidence), _inside(confidence))
                numbers[node] = together.add(numbers[parent], token, confidence, source=source)
        return together

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        for member in self._members:
            member.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        for member in self._members:
            member.close()

    def _learn(self, came: tuple[int, ...]) -> None:
        """Compare the last draft tokens with what came."""
        outcomes: list[tuple[Hashable, bool]] = []
        for name, tree in self._proposed:
            node = ROOT
            for token in came:
                outcomes += (
                    (self._key(name, tree.confidences[each]), tree.tokens[each] == token)
                    for each in tree.children(node)
                    if tree.sources[each] != FORCED
                )
                child = tree.child(node, token)
                if child is None:
                    break
                node = child
        self._calibration.record_all(outcomes)
        self._proposed = []

    def _key(self, name: str, confidence: float) -> Hashable:
        return name, self._kind, round(confidence * _GRADES)


def _inside(confidence: float) -> float:
    """The confidence as a prior, which is never certain."""
    return min(max(confidence, 0.01), 0.99)


@final
@dataclass(frozen=True, slots=True)
class Auto(Drafter):
    """All drafters that need no model, together.

    They draft what the grammar leaves few of, what stands in the prompt, what earlier outputs had, what came in the
    same state of the grammar, and what the model itself expected after the same token.

    What is learned is kept for the vocabulary, for as long as that lives: outputs of one process learn from each other,
    in any thread.  It decides how many forward passes an output takes, and nothing about what is written; ``forget``
    drops it.
    """

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "auto"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _memory_of(task.constraint.vocabulary).drafter.start(context, task)


def forget(vocabulary: Vocabulary | None = None) -> None:
    """Drop what ``Auto`` has learned from outputs so far.

    Args:
        vocabulary: of the models whose outputs are forgotten; None is all.
    """
    with _lock:
        if vocabulary is None:
            _memories.clear()
        else:
            _memories.pop(vocabulary, None)


def _default_drafters() -> Combined:
    calibration = Calibration()
    return Combined(
        (
            ForcedTokens(calibration=calibration),
            PromptLookup(calibration=calibration),
            Retrieval(calibration=calibration),
            GrammarStatistics(calibration=calibration),
            TokenRecycling(),
        )
    )


@final
@dataclass(frozen=True)
class _VocabularyMemory:
    """What was learned from the outputs of one vocabulary."""

    drafter: Combined = field(default_factory=_default_drafters)


_lock: Final = threading.Lock()
_memories: Final[weakref.WeakKeyDictionary[Vocabulary, _VocabularyMemory]] = weakref.WeakKeyDictionary()


def _memory_of(vocabulary: Vocabulary) -> _VocabularyMemory:
    with _lock:
        memory = _memories.get(vocabulary)
        if memory is None:
            memory = _memories[vocabulary] = _VocabularyMemory()
        return memory
