"""The loops that decode: how a model's laws become an output within a grammar.  Needs numpy and nothing heavier."""

from structgen.decode.autoregressive import AnyPotential, AnySampler, start_generation
from structgen.decode.captures import find_captures
from structgen.decode.context import Context
from structgen.decode.generate import AnyCanvasSampler, AnyModel, generate
from structgen.decode.generation import Chunk, Generation
from structgen.decode.projection import Projection, project
from structgen.decode.result import FinishReason, Result, Stats, Step
from structgen.decode.sampler import Greedy, Multinomial, Sampler
from structgen.decode.speculative.draft_stats import DraftStats
from structgen.decode.speculative.speculation import AnyDrafter, Speculation

__all__ = [
    "AnyCanvasSampler",
    "AnyDrafter",
    "AnyModel",
    "AnyPotential",
    "AnySampler",
    "Chunk",
    "Context",
    "DraftStats",
    "FinishReason",
    "Generation",
    "Greedy",
    "Multinomial",
    "Projection",
    "Result",
    "Sampler",
    "Speculation",
    "Stats",
    "Step",
    "find_captures",
    "generate",
    "project",
    "start_generation",
]
