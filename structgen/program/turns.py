"""Turns of a chat: who said what."""

from __future__ import annotations

import copy
from typing import Final, Literal, TypeAlias, final

from structgen.errors import ProgramError

__all__ = ["Role", "Turns"]

Role: TypeAlias = Literal["system", "user", "assistant"]

_ASSISTANT: Final = "assistant"


@final
class Turns:
    """The turns that are over, and the one that is open: at first the user's.

    Args:
        chat: whether there are turns; else all text is one.

    Attributes:
        chat: likewise.
        closed: the turns that are over, as messages.
        text: of the open turn.
        transcript: all that was said, in one text.
    """

    def __init__(self, *, chat: bool = True) -> None:
        self.chat = chat
        self.closed: tuple[dict[str, str], ...] = ()
        self.text = ""
        self.transcript = ""
        self._role: Role = "user"

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """All turns, the open one as far as anything was said in it."""
        return (*self.closed, *([{"role": self._role, "content": self.text}] if self.text else []))

    @property
    def is_answer(self) -> bool:
        """Whether the open turn is the assistant's."""
        return self._role == _ASSISTANT

    def say(self, text: str) -> None:
        """Add text to the open turn."""
        self.text += text
        self.transcript += text

    def open(self, role: Role, text: str) -> None:
        """Close the open turn and say something in one of ``role``, which stays open.

        Raises:
            ProgramError: there are no turns, for the prompt is taken as it is.
        """
        if not self.chat:
            raise ProgramError(
                f"turn of {role!r}",
                "the program takes its prompt as it is (chat=False), so there are no turns",
                remedy="yield plain text, or leave chat=True",
            )
        self._close()
        self._role = role
        self.say(text)

    def open_answer(self) -> None:
        """See to it that the open turn is the assistant's.

        Raises:
            ProgramError: nothing was said before it.
        """
        if self._role != _ASSISTANT:
            self._close()
            self._role = _ASSISTANT
        if not self.closed:
            raise ProgramError(
                "program",
                "it asks the model before anything was said",
                remedy="yield some text first, or give the program a docstring",
            )

    def fork(self) -> Turns:
        """Return an independent copy."""
        return copy.copy(self)

    def _close(self) -> None:
        if self.text or self._role == _ASSISTANT:
            self.closed = (*self.closed, {"role": self._role, "content": self.text})
        self.text = ""
