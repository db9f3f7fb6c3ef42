"""What kernels raise; they stand alone, so their callers turn these into errors that name a sequence."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BackendUnavailable", "EmptyRowError", "KernelArgumentError"]


class KernelArgumentError(ValueError):
    """An argument that a kernel cannot take, found before anything is launched.

    Args:
        kernel: the operation.
        argument: which argument.
        problem: what is wrong with it.
    """

    def __init__(self, kernel: str, argument: str, problem: str) -> None:
        super().__init__(f"kernel {kernel!r}: {argument} {problem}")
        self.kernel = kernel
        self.argument = argument
        self.problem = problem


class EmptyRowError(ValueError):
    """Rows in which no token is allowed, or none that is has any probability.

    Args:
        kernel: the operation.
        rows: their numbers, ascending.
    """

    def __init__(self, kernel: str, rows: Sequence[int]) -> None:
        shown = ", ".join(map(str, rows[:8])) + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
        super().__init__(f"kernel {kernel!r}: no token is possible in row {shown}")
        self.kernel = kernel
        self.rows = tuple(rows)


class BackendUnavailable(RuntimeError):
    """A backend that cannot run here.

    Args:
        backend: which.
        reason: why not, and what to do.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"kernel backend {backend!r}: {reason}")
        self.backend = backend
        self.reason = reason
