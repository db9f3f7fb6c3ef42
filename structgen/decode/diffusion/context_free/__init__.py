"""Canvases of grammars that recur: networks over tokens, and charts over slots."""

from structgen.decode.diffusion.context_free.language import ContextFreeLanguage
from structgen.decode.diffusion.context_free.posterior import ContextFreePosterior

__all__ = ["ContextFreeLanguage", "ContextFreePosterior"]
