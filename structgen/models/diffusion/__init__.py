"""Masked diffusion language models with one protocol.

Importing this package imports neither torch nor transformers; ``load_diffusion_model`` does.
"""

from __future__ import annotations

from structgen.models import load_diffusion_model
from structgen.models.protocol.diffusion import (
    CachingDenoiser,
    Canvases,
    Denoiser,
    DiffusionModel,
    ResidentCachingDenoiser,
    ResidentDenoiser,
    SlotLogits,
)
from structgen.models.toy.hash import HashDiffusion
from structgen.models.toy.markov_diffusion import HiddenMarkovDiffusion
from structgen.models.toy.ngram_diffusion import NGramDiffusion

__all__ = [
    "CachingDenoiser",
    "Canvases",
    "Denoiser",
    "DiffusionModel",
    "HashDiffusion",
    "HiddenMarkovDiffusion",
    "NGramDiffusion",
    "ResidentCachingDenoiser",
    "ResidentDenoiser",
    "SlotLogits",
    "load_diffusion_model",
]
