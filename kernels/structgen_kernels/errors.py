"""The errors of kernels.  This package does not import structgen; callers there raise errors that name a sequence."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BackendUnavailable", "EmptyRowError", "KernelArgumentError", "NonFiniteLogitsError"]


class KernelArgumentError(ValueError):
    """An invalid argument, found before a launch.

    Args:
        kernel: the operation.
        argument: the name of the argument.
        problem: what is wrong with the argument.
    """

    def __init__(self, kernel: str, argument: str, problem: str) -> None:
        super().__init__(f"kernel {kernel!r}: {argument} {problem}")
        self.kernel = kernel
        self.argument = argument
        self.problem = problem


class EmptyRowError(ValueError):
    """Rows without an allowed token, or whose allowed tokens all have probability 0.

    Args:
        kernel: the operation.
        rows: the row indices, ascending.
        names: names for all rows of the batch, or None.
    """

    def __init__(self, kernel: str, rows: Sequence[int], names: Sequence[str] | None = None) -> None:
        super().__init__(f"kernel {kernel!r}: no token is possible in row {_shown(rows, names)}")
        self.kernel = kernel
        self.rows = tuple(rows)


class NonFiniteLogitsError(ValueError):
    """Rows with NaN or plus infinity among their logits: they define no distribution.

    Args:
        kernel: the operation.
        rows: the row indices, ascending.
        names: names for all rows of the batch, or None.
    """

    def __init__(self, kernel: str, rows: Sequence[int], names: Sequence[str] | None = None) -> None:
        super().__init__(
            f"kernel {kernel!r}: NaN or plus infinity among the logits of row {_shown(rows, names)}; "
            "check the model's weights and number format"
        )
        self.kernel = kernel
        self.rows = tuple(rows)


class BackendUnavailable(RuntimeError):
    """A backend that cannot run here.

    Args:
        backend: the name of the backend.
        reason: why it cannot run, and what to do.
    """

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"kernel backend {backend!r}: {reason}")
        self.backend = backend
        self.reason = reason


def _shown(rows: Sequence[int], names: Sequence[str] | None) -> str:
    shown = ", ".join(str(row) if names is None else f"{row} ({names[row]!r})" for row in rows[:8])
    return shown + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")
