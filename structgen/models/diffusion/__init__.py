"""Masked diffusion language models behind one protocol.

Importing this package imports neither torch nor transformers; ``load_diffusion_model`` does.
"""

from __future__ import annotations

from structgen.models.diffusion.hash_denoiser import HashDiffusion
from structgen.models.diffusion.hmm_denoiser import HiddenMarkovDiffusion
from structgen.models.diffusion.loading import load_diffusion_model
from structgen.models.diffusion.ngram_denoiser import NGramDiffusion
from structgen.models.diffusion.protocol import (
    CachingDenoiser,
    Canvases,
    Denoiser,
    DiffusionModel,
    ResidentCachingDenoiser,
    ResidentDenoiser,
    SlotLogits,
)

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
