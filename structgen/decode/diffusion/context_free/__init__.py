"""Canvases of recursive grammars: networks over tokens, and charts over slots."""

from structgen.decode.diffusion.context_free.language import ContextFreeLanguage, ContextFreePosterior

__all__ = ["ContextFreeLanguage", "ContextFreePosterior"]
