"""Builders and options of grammars, in addition to those that ``structgen`` itself exports."""

from __future__ import annotations

from structgen.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
__all__ = __dir__()  # noqa: PLE0605  # a list
