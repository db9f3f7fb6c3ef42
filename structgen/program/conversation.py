"""Turns of a chat in front of a model, and the context that they become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from structgen.decode import Context
from structgen.errors import ProgramError

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["Conversation", "Role"]

Role: TypeAlias = Literal["system", "user", "assistant"]

_ASSISTANT: Final = "assistant"


@final
class Conversation:
    """What was said so far, by the program and by the model.

    Text goes to the turn that is open: at first the user's, and once the model has been asked, the assistant's, which
    the model then goes on with.  The context is brought up to date when the model is asked: the key-value cache keeps
    all that did not change, whatever the chat template does to earlier turns.

    Args:
        model: the language model.
        chat: whether turns are spelled by the model's chat template; else all text is taken as it is, and there are no
            turns.
    """

    def __init__(self, model: LanguageModel, *, chat: bool = True) -> None:
        self._context = Context(model)
        self._chat = chat
        self._closed: list[dict[str, str]] = []  # turns that are over
        self._role: Role = "user"
        self._text = ""  # of the open turn
        self._unread = ""  # its end, which is not in the context yet
        self._is_ready = False  # the context holds all but `_unread`
        self.transcript = ""

    @property
    def model(self) -> LanguageModel:
        """The language model."""
        return self._context.model

    def say(self, text: str) -> None:
        """Add text to the open turn."""
        self._text += text
        self._unread += text
        self.transcript += text

    def turn(self, role: Role, text: str) -> None:
        """Close the open turn and say something in one of ``role``, which stays open.

        Raises:
            ProgramError: there are no turns, for the prompt is taken as it is.
        """
        if not self._chat:
            raise ProgramError(
                f"turn of {role!r}",
                "the program takes its prompt as it is (chat=False), so there are no turns",
                remedy="yield plain text, or leave chat=True",
            )
        self._close_turn()
        self._role, self._text, self._unread = role, text, text
        self._is_ready = False
        self.transcript += text

    def ready(self) -> Context:
        """Return the context in which the model is to go on.

        Raises:
            ProgramError: nothing was said.
            ModelError: the chat template refuses the turns.
        """
        context = self._context
        if not self._chat:
            self._append(self._unread)
        elif self._role != _ASSISTANT or not self._is_ready:
            if self._role != _ASSISTANT:
                self._close_turn()
                self._role, self._text = _ASSISTANT, ""
            if not self._closed:
                raise ProgramError(
                    "program",
                    "it asks the model before anything was said",
                    remedy="yield some text first, or give the program a docstring",
                )
            context.replace(context.model.encode_prompt(_prompt(self._closed)))
            self._append(self._text)
            self._is_ready = True
        else:
            self._append(self._unread)
        self._unread = ""
        if not len(context):
            context.append(context.model.encode_prompt("", chat=False))
        return context

    def read(self) -> None:
        """Let the model read what was said so far, so that forks need not each do it."""
        if self._is_ready or not self._chat:
            self.ready()
        elif self._text or self._closed:
            open_turn = [{"role": self._role, "content": self._text}] if self._text else []
            self._context.replace(self._context.model.encode_prompt(_prompt([*self._closed, *open_turn])))
        self._context.read()

    def written(self, text: str) -> None:
        """Note what the model has added to the context."""
        self._text += text
        self.transcript += text

    def fork(self) -> Conversation:
        """Return an independent conversation with the same turns and a copy of the cache."""
        copy = Conversation.__new__(Conversation)
        copy.__dict__.update(self.__dict__)
        copy._closed = list(self._closed)
        copy._context = self._context.fork()
        return copy

    def close(self) -> None:
        """Free the cache."""
        self._context.close()

    def _append(self, text: str) -> None:
        if text:
            self._context.append(self._context.model.encode_prompt(text, chat=False))

    def _close_turn(self) -> None:
        if self._text or self._role == _ASSISTANT:
            self._closed.append({"role": self._role, "content": self._text})
        self._text = self._unread = ""
        self._is_ready = False


def _prompt(turns: list[dict[str, str]]) -> str | list[dict[str, str]]:
    """One message of the user is a text, so that models without a template can take it."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turns[0]["content"]
    return turns
