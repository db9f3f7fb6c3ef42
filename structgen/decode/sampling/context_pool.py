"""A few contexts for many beginnings, which are looked at in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["ContextPool"]


@final
class ContextPool:
    """Contexts that hold the prompt, and behind it what each was used for last.

    A beginning goes to the context that has most of it already, so that mostly one token is left to run.  There are as
    many as beginnings were ever asked for together.

    Args:
        start: returns a new context with the prompt.
        prompt_tokens: how many tokens that has.
    """

    def __init__(self, start: Callable[[], Context], prompt_tokens: int) -> None:
        self._start = start
        self._prompt_tokens = prompt_tokens
        self._contexts: list[Context] = []
        self._held: list[tuple[int, ...]] = []

    def placed(self, paths: Sequence[tuple[int, ...]]) -> list[Context]:
        """Return a context for each of the paths, which holds it and has a token of it, or of the prompt, to run.

        Complexity: O(paths^2 length).
        """
        while len(self._contexts) < len(paths):
            self._contexts.append(self._start())
            self._held.append(())
        free = list(range(len(self._contexts)))
        placed = []
        for path in paths:
            index = max(free, key=lambda at: _shared(self._held[at], path))
            free.remove(index)
            self._replace(index, path)
            placed.append(self._contexts[index])
        return placed

    def _replace(self, index: int, path: tuple[int, ...]) -> None:
        context = self._contexts[index]
        shared = _shared(self._held[index], path)
        if shared < len(self._held[index]) or shared == len(path):
            context.truncate(self._prompt_tokens + shared)
        context.append(path[shared:])
        self._held[index] = path


def _shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many tokens two paths begin with alike."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next(at for at in range(count) if first[at] != second[at])
