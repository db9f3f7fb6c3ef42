"""Drafters propose the next tokens, which the model verifies in one forward pass."""

from structgen.decode.speculative.cost import CostModel as CostModel
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
from structgen.decode.speculative.speculation import Speculation as Speculation
from structgen.decode.step.result import DraftStats as DraftStats
from structgen.methods.drafters.dynamic_exit import DynamicExit as DynamicExit
from structgen.methods.drafters.extended import Extended as Extended
from structgen.methods.drafters.heads.trained_heads import TrainedHeads as TrainedHeads
from structgen.methods.drafters.jacobi import Jacobi as Jacobi
from structgen.methods.drafters.layer_skip import (
    Clasp as Clasp,
    LayerSkip as LayerSkip,
)
from structgen.methods.drafters.lookahead import Lookahead as Lookahead
from structgen.methods.drafters.stand import Stand as Stand
from structgen.methods.drafters.string_match import ExactStringMatch as ExactStringMatch
from structgen.methods.drafters.string_rejection import StringRejection as StringRejection
from structgen.methods.drafters.token_bridge import TokenIntersection as TokenIntersection
from structgen.methods.drafters.trigrams import TrigramDrafts as TrigramDrafts
from structgen.methods.drafters.vocabulary_trim import VocabularyTrim as VocabularyTrim

__all__ = [
    "Auto",
    "Bridge",
    "Clasp",
    "Combined",
    "CopySpec",
    "CostModel",
    "DraftModel",
    "DraftStats",
    "DraftStore",
    "DynamicExit",
    "ExactStringMatch",
    "Extended",
    "ForcedTokens",
    "GrammarStatistics",
    "Jacobi",
    "LayerSkip",
    "Lookahead",
    "PromptLookup",
    "Retrieval",
    "ShortContext",
    "Speculation",
    "Stand",
    "StringRejection",
    "TokenIntersection",
    "TokenRecycling",
    "TrainedHeads",
    "TrigramDrafts",
    "VocabularyTrim",
    "forget",
]
