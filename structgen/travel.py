"""What goes between processes only by name, and what can't go at all; all else is pickled and copied by its parts."""

from __future__ import annotations

import sys
from typing import Any, NoReturn, Self

from structgen.errors import ArgumentError

__all__ = ["ByName", "Live"]


class Live:
    """A base of what holds a model, a sequence or a connection, which can't be pickled or copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            type(self).__name__,
            "it can't be pickled or copied",
            evidence="it holds a model, a running sequence or a connection of this process",
            remedy="make it where it is used, from what it was made of: a name or folder, a Constraint, settings",
        )


class ByName:
    """A base of what a decorator makes of a function: pickled by name, as functions are, and its own copy."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> str:
        """Return the name by which pickle finds it again.

        Raises:
            ArgumentError: its module has something else, or nothing, under that name.
        """
        name: str = getattr(self, "__qualname__", "")
        module: str | None = getattr(self, "__module__", None)
        found: Any = sys.modules.get(module or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        raise ArgumentError(
            f"{type(self).__name__.lower()} {name}",
            "it can't be pickled",
            evidence=f"{module}.{name} is {'something else' if found else 'not there'}",
            remedy="define it at the top of a module, under the name of its function",
        )
