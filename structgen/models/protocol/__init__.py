"""The interface of language models that the decode layer uses.

The decode layer uses only these protocols and numpy; no tensor of any framework crosses them.
"""

from __future__ import annotations

from structgen.models.protocol.language import (
    Chat,
    LanguageModel,
    LayeredSession,
    Logits,
    Mixture,
    Progress,
    Prompt,
    Session,
    SkippingSession,
    States,
    SuperposableSession,
    TrimmedHead,
    silent,
)
from structgen.models.protocol.tree import (
    Extension,
    LogitsQuery,
    PackedModel,
    ResidentLogits,
    ResidentModel,
    ResidentSession,
    SampleAnswer,
    SampleQuery,
    SamplingParams,
    ScoreQuery,
    TreeSession,
)

__all__ = [
    "Chat",
    "Extension",
    "LanguageModel",
    "LayeredSession",
    "Logits",
    "LogitsQuery",
    "Mixture",
    "PackedModel",
    "Progress",
    "Prompt",
    "ResidentLogits",
    "ResidentModel",
    "ResidentSession",
    "SampleAnswer",
    "SampleQuery",
    "SamplingParams",
    "ScoreQuery",
    "Session",
    "SkippingSession",
    "States",
    "SuperposableSession",
    "TreeSession",
    "TrimmedHead",
    "silent",
]
