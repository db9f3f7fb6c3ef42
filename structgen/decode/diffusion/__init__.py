"""Decoding with diffusion models: canvases are restricted to a language, completed, and committed slot by slot.

Needs numpy and nothing heavier. Names are imported when they are first used: autoregressive decoding does not pay for
canvases.
"""

from __future__ import annotations

from structgen.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ = __dir__()  # noqa: PLE0605  # a list
