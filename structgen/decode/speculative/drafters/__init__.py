"""Drafters: where guesses come from.

Each is imported when it is first used: ``Auto``, which every output has, needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.auto import Auto, forget
    from structgen.decode.speculative.drafters.bridges.bridge import Bridge
    from structgen.decode.speculative.drafters.bridges.string_match import ExactStringMatch
    from structgen.decode.speculative.drafters.bridges.string_rejection import StringRejection
    from structgen.decode.speculative.drafters.bridges.token_intersection import TokenIntersection
    from structgen.decode.speculative.drafters.combined import Combined
    from structgen.decode.speculative.drafters.copying.copy_spec import CopySpec
    from structgen.decode.speculative.drafters.copying.draft_store import DraftStore
    from structgen.decode.speculative.drafters.copying.prompt_lookup import PromptLookup
    from structgen.decode.speculative.drafters.copying.retrieval import Retrieval
    from structgen.decode.speculative.drafters.counting.forced_tokens import ForcedTokens
    from structgen.decode.speculative.drafters.counting.grammar_statistics import GrammarStatistics
    from structgen.decode.speculative.drafters.draft_models.draft_model import DraftModel
    from structgen.decode.speculative.drafters.draft_models.short_context import ShortContext
    from structgen.decode.speculative.drafters.heads.trained_heads import TrainedHeads
    from structgen.decode.speculative.drafters.layers.dynamic_exit import DynamicExit
    from structgen.decode.speculative.drafters.layers.layer_skip import Clasp, LayerSkip
    from structgen.decode.speculative.drafters.layers.trim import VocabularyTrim
    from structgen.decode.speculative.drafters.recycling.extended import Extended
    from structgen.decode.speculative.drafters.recycling.jacobi import Jacobi
    from structgen.decode.speculative.drafters.recycling.lookahead import Lookahead
    from structgen.decode.speculative.drafters.recycling.stand import Stand
    from structgen.decode.speculative.drafters.recycling.token_recycling import TokenRecycling
    from structgen.decode.speculative.drafters.recycling.trigrams import TrigramDrafts

__all__ = [
    "Auto",
    "Bridge",
    "Clasp",
    "Combined",
    "CopySpec",
    "DraftModel",
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
    "Stand",
    "StringRejection",
    "TokenIntersection",
    "TokenRecycling",
    "TrainedHeads",
    "TrigramDrafts",
    "VocabularyTrim",
    "forget",
]

_NAMES = {
    "auto": (
        "Auto",
        "forget",
    ),
    "bridges.bridge": ("Bridge",),
    "bridges.string_match": ("ExactStringMatch",),
    "bridges.string_rejection": ("StringRejection",),
    "bridges.token_intersection": ("TokenIntersection",),
    "combined": ("Combined",),
    "copying.copy_spec": ("CopySpec",),
    "copying.draft_store": ("DraftStore",),
    "copying.prompt_lookup": ("PromptLookup",),
    "copying.retrieval": ("Retrieval",),
    "counting.forced_tokens": ("ForcedTokens",),
    "counting.grammar_statistics": ("GrammarStatistics",),
    "draft_models.draft_model": ("DraftModel",),
    "draft_models.short_context": ("ShortContext",),
    "heads.trained_heads": ("TrainedHeads",),
    "layers.dynamic_exit": ("DynamicExit",),
    "layers.layer_skip": (
        "Clasp",
        "LayerSkip",
    ),
    "layers.trim": ("VocabularyTrim",),
    "recycling.extended": ("Extended",),
    "recycling.jacobi": ("Jacobi",),
    "recycling.lookahead": ("Lookahead",),
    "recycling.stand": ("Stand",),
    "recycling.token_recycling": ("TokenRecycling",),
    "recycling.trigrams": ("TrigramDrafts",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        """Import a drafter from its home and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
