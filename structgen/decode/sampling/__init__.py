"""Samplers of whole outputs: sequential Monte Carlo and others.  Names are imported when they are first used."""

from __future__ import annotations

from structgen.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ = __dir__()  # noqa: PLE0605  # a list
