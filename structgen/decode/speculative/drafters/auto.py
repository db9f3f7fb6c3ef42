"""The drafter that ``generate`` has unless one is given."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.drafters.combined import Combined
from structgen.decode.speculative.drafters.copying.prompt_lookup import PromptLookup
from structgen.decode.speculative.drafters.copying.retrieval import Retrieval
from structgen.decode.speculative.drafters.counting.forced_tokens import ForcedTokens
from structgen.decode.speculative.drafters.counting.grammar_statistics import GrammarStatistics
from structgen.decode.speculative.drafters.recycling.token_recycling import TokenRecycling
from structgen.engine import Vocabulary

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["Auto", "forget"]


@final
@dataclass(frozen=True, slots=True)
class Auto(Drafter):
    """All drafters that need no model, together.

    They guess what the grammar leaves few of, what stands in the prompt, what earlier outputs had, what came in the
    same state of the grammar, and what the model itself expected behind the same token.

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


def _drafters() -> Combined:
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
class _Memory:
    """What was learned from the outputs of one vocabulary."""

    drafter: Combined = field(default_factory=_drafters)


_lock: Final = threading.Lock()
_memories: Final[weakref.WeakKeyDictionary[Vocabulary, _Memory]] = weakref.WeakKeyDictionary()


def _memory_of(vocabulary: Vocabulary) -> _Memory:
    with _lock:
        memory = _memories.get(vocabulary)
        if memory is None:
            memory = _memories[vocabulary] = _Memory()
        return memory
