"""The drafters of the core: what ``auto`` combines, and draft models.

Names are imported when they are first used. ``structgen.drafters`` lists the catalogue too.
"""

from structgen.decode.speculative.drafters.auto import (
    Auto as Auto,
    Combined as Combined,
    forget as forget,
)
from structgen.decode.speculative.drafters.copying.prompt_lookup import (
    CopySpec as CopySpec,
    PromptLookup as PromptLookup,
)
from structgen.decode.speculative.drafters.copying.retrieval import (
    DraftStore as DraftStore,
    Retrieval as Retrieval,
)
from structgen.decode.speculative.drafters.draft_model import DraftModel as DraftModel
from structgen.decode.speculative.drafters.forced_tokens import ForcedTokens as ForcedTokens
from structgen.decode.speculative.drafters.grammar_statistics import GrammarStatistics as GrammarStatistics
from structgen.decode.speculative.drafters.short_context import ShortContext as ShortContext
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling as TokenRecycling
from structgen.decode.speculative.drafters.vocabulary_bridge import Bridge as Bridge

__all__ = [
    "Auto",
    "Bridge",
    "Combined",
    "CopySpec",
    "DraftModel",
    "DraftStore",
    "ForcedTokens",
    "GrammarStatistics",
    "PromptLookup",
    "Retrieval",
    "ShortContext",
    "TokenRecycling",
    "forget",
]
