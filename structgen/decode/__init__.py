"""The decoding loops: from a model's logits to an output within a grammar.  Needs numpy and nothing heavier."""

from structgen.decode.autoregressive.loop import AnyPotential, Autoregressive, Chunk, Generation
from structgen.decode.generate import AnyCanvasSampler, AnyModel, AnySampler, Decoding, generate, start_generation
from structgen.decode.speculative.speculation import AnyDrafter, Speculation
from structgen.decode.step.context import Context
from structgen.decode.step.distribution import Projection, project
from structgen.decode.step.result import DraftStats, FinishReason, Result, Stats, Step
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler
from structgen.engine.parse.captures import find_captures

__all__ = [
    "AnyCanvasSampler",
    "AnyDrafter",
    "AnyModel",
    "AnyPotential",
    "AnySampler",
    "Autoregressive",
    "Chunk",
    "Context",
    "Decoding",
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
