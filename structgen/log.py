"""The logger ``structgen``: what is loaded, compiled, cut, refused and dropped; silent unless the program sets it up.

Messages are formatted only if a handler takes them.  Levels: ``DEBUG`` for costs, ``INFO`` for values that are written
again, ``WARNING`` where the result is not what a larger budget, or a part that works, would have given.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final, ParamSpec, Protocol, TypeVar

__all__ = ["log_cut", "log_loading", "logger"]

logger: Final = logging.getLogger("structgen")
logger.addHandler(logging.NullHandler())

Parameters = ParamSpec("Parameters")


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def vocabulary(self) -> object: ...


Model = TypeVar("Model", bound=_Named)


def log_loading(load: Callable[Parameters, Model]) -> Callable[Parameters, Model]:
    """Let a function that loads a model log its name, its vocabulary and the time."""

    @functools.wraps(load)
    def loaded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Model:
        began = perf_counter()
        model = load(*args, **kwargs)
        logger.debug("loaded model %r in %.2f s: %r", model.name, perf_counter() - began, model.vocabulary)
        return model

    return loaded


def log_cut(cut_at: int | None, tokens: int, budget: int) -> None:
    """Warn that the budget decided an output from one of its tokens on; ``cut_at`` is None if it did not."""
    if cut_at is not None:
        logger.warning("budget of %d tokens: it decided the output from token %d of %d on", budget, cut_at, tokens)
