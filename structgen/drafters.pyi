"""Drafters propose the next tokens, which the model verifies in one forward pass."""

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.drafters.auto import Auto, Combined, forget
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics
from structgen.decode.speculative.drafters.prompt_lookup import CopySpec, PromptLookup
from structgen.decode.speculative.drafters.retrieval import DraftStore, Retrieval
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.speculation import Speculation
from structgen.decode.step.result import DraftStats
from structgen.methods.drafters.draft_model import DraftModel, ShortContext
from structgen.methods.drafters.draft_session import Bridge
from structgen.methods.drafters.dynamic_exit import DynamicExit
from structgen.methods.drafters.heads.trained_heads import TrainedHeads
from structgen.methods.drafters.jacobi import Jacobi
from structgen.methods.drafters.layer_skip import Clasp, LayerSkip
from structgen.methods.drafters.lookahead import Extended, Lookahead
from structgen.methods.drafters.ngram_tables import Stand, TrigramDrafts
from structgen.methods.drafters.string_rejection import StringRejection
from structgen.methods.drafters.token_bridge import ExactStringMatch, TokenIntersection
from structgen.methods.drafters.vocabulary_trim import VocabularyTrim

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
