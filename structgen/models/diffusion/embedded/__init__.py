"""A small masked diffusion model in the package."""

from __future__ import annotations

from structgen.models.diffusion.embedded.model import EmbeddedDiffusion, load_embedded_diffusion

__all__ = ["EmbeddedDiffusion", "load_embedded_diffusion"]
