"""The drafters of the core: what ``auto`` combines.

Names are imported when they are first used. ``structgen.drafters`` lists the catalogue too.
"""

from structgen.decode.speculative.drafters.auto import Auto, Combined, forget
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics
from structgen.decode.speculative.drafters.prompt_lookup import CopySpec, PromptLookup
from structgen.decode.speculative.drafters.retrieval import DraftStore, Retrieval
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling

__all__ = [
    "Auto",
    "Combined",
    "CopySpec",
    "DraftStore",
    "ForcedTokens",
    "GrammarStatistics",
    "PromptLookup",
    "Retrieval",
    "TokenRecycling",
    "forget",
]
