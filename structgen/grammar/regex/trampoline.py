"""Recursive algorithms without recursion: a call is a ``yield``, the stack is a list."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

__all__ = ["Call", "run"]

T = TypeVar("T")

Call: TypeAlias = Generator["Call[Any]", Any, T]
"""A suspended call: it yields the calls that it depends on and returns a ``T``."""


def run(call: Call[T]) -> T:
    """Run ``call`` to its end, however deep its calls nest.

    >>> def depth(n: int) -> Call[int]:
    ...     return 0 if n == 0 else 1 + (yield depth(n - 1))
    >>> run(depth(100_000))
    100000
    """
    stack: list[Call[Any]] = [call]
    value: Any = None
    while True:
        try:
            callee = stack[-1].send(value)
        except StopIteration as finished:
            stack.pop()
            value = finished.value
            if not stack:
                result: T = value
                return result
        else:
            stack.append(callee)
            value = None
