"""Recursion without the stack: generators that yield their sub-problems.

A recursive function is written as a generator; ``result = yield function(smaller)`` stands for the recursive call.
:func:`trampoline` keeps the suspended generators in a list, so that depth costs memory only.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

__all__ = ["Call", "trampoline"]

T = TypeVar("T")

Call: TypeAlias = Generator["Call[Any]", Any, T]
"""A suspended call: it yields the calls that it depends on and returns a ``T``."""


def trampoline(problem: Generator[object, Any, T]) -> T:
    """Return what ``problem`` returns, after solving the sub-problems that it yields.

    >>> def depth(n: int) -> Call[int]:
    ...     return 0 if n == 0 else 1 + (yield depth(n - 1))
    >>> trampoline(depth(100_000))
    100000
    """
    suspended: list[Generator[object, Any, Any]] = [problem]
    result: Any = None
    while suspended:
        try:
            callee = suspended[-1].send(result)
        except StopIteration as stop:
            suspended.pop()
            result = stop.value
        else:
            suspended.append(callee)  # type: ignore[arg-type]  # what is yielded is such a generator
            result = None
    answer: T = result
    return answer
