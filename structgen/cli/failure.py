"""What the command line says when it cannot do what was asked, and the exit status that goes with it."""

from __future__ import annotations

from typing import Final

from structgen.errors import BudgetError, GenerationError, ModelError, StructgenError

__all__ = ["DONE", "FAILED", "INTERRUPTED", "PIPE_CLOSED", "UNUSABLE", "Failure", "status_of"]

DONE: Final = 0
FAILED: Final = 1
"""The input does not match, or generation failed."""
UNUSABLE: Final = 2
"""The arguments or the input cannot be used."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell reports a process that SIGINT ended."""
PIPE_CLOSED: Final = 141
"""Nobody reads the output any more, as a shell reports a process that SIGPIPE ended."""


class Failure(Exception):
    """A command ends here.

    Attributes:
        message: what standard error is told.
        status: the exit status.
    """

    def __init__(self, message: str, status: int = UNUSABLE) -> None:
        self.message = message
        self.status = status
        super().__init__(message)


def status_of(error: StructgenError) -> int:
    """Return the exit status for an error of the library."""
    if isinstance(error, (GenerationError, ModelError)) and not isinstance(error, BudgetError):
        return FAILED
    return UNUSABLE
