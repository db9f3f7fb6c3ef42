"""Decoding with diffusion models: restrict a canvas to a language, take a completion, commit some of its slots.

Needs only numpy. Names are imported on first use, so autoregressive decoding does not pay for canvases.
"""

from __future__ import annotations

from structgen.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ = __dir__()  # noqa: PLE0605  # a list
