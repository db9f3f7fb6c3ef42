"""What was said to a model that runs here, and the context that it becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from structgen.decode import Context
from structgen.program.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import LanguageModel
    from structgen.program.turns import Role

__all__ = ["Conversation", "prompt_of"]


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
        self._turns = Turns(chat=chat)
        self._read = 0  # characters of the open turn that are in the context
        self._is_ready = False  # so is all before them

    @property
    def model(self) -> LanguageModel:
        """The language model."""
        return self._context.model

    @property
    def transcript(self) -> str:
        """All that was said."""
        return self._turns.transcript

    def say(self, text: str) -> None:
        """Add text to the open turn."""
        self._turns.say(text)

    def turn(self, role: Role, text: str) -> None:
        """Close the open turn and say something in one of ``role``, which stays open.

        Raises:
            ProgramError: as ``Turns.open``.
        """
        self._turns.open(role, text)
        self._read, self._is_ready = 0, False

    def ready(self) -> Context:
        """Return the context in which the model is to go on.

        Raises:
            ProgramError: nothing was said.
            ModelError: the chat template refuses the turns.
        """
        context, turns = self._context, self._turns
        if turns.chat and not (turns.is_answer and self._is_ready):
            turns.open_answer()
            context.replace(context.model.encode_prompt(prompt_of(turns.closed)))
            self._read, self._is_ready = 0, True
        unread = turns.text[self._read :]
        if unread:
            context.append(context.model.encode_prompt(unread, chat=False))
            self._read = len(turns.text)
        if not len(context):
            context.append(context.model.encode_prompt("", chat=False))
        return context

    def read(self) -> None:
        """Let the model read what was said so far, so that forks need not each do it."""
        if self._is_ready or not self._turns.chat:
            self.ready()
        elif self._turns.messages:
            self._context.replace(self._context.model.encode_prompt(prompt_of(self._turns.messages)))
        self._context.read()

    def written(self, text: str) -> None:
        """Note what the model has added to the context."""
        self._turns.say(text)
        self._read += len(text)

    def fork(self) -> Conversation:
        """Return an independent conversation with the same turns, and what is cached of them."""
        copy = Conversation.__new__(Conversation)
        copy.__dict__.update(self.__dict__)
        copy._turns = self._turns.fork()
        copy._context = self._context.fork()
        return copy

    def close(self) -> None:
        """Free the cache."""
        self._context.close()


def prompt_of(turns: Sequence[dict[str, str]]) -> str | list[dict[str, str]]:
    """One message of the user is a text, so that models without a template can take it."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turns[0]["content"]
    return list(turns)
