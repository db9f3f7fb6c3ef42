"""The turns of a chat, and the conversation with a local model whose context they become."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias, final

from structgen.decode import Context
from structgen.errors import ProgramError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import LanguageModel

__all__ = ["BaseConversation", "Conversation", "Role", "Turns", "prompt_of", "with_hint"]

Role: TypeAlias = Literal["system", "user", "assistant"]

_ASSISTANT: Final = "assistant"


@final
@dataclass(slots=True, kw_only=True)
class Turns:
    """The closed turns, and the open one: at first the user's.

    Attributes:
        chat: whether there are turns; else all text is one.
        closed: the closed turns, as messages.
        text: of the open turn.
        transcript: all turns, in one text.
    """

    chat: bool = True
    closed: tuple[dict[str, str], ...] = ()
    text: str = ""
    transcript: str = ""
    _role: Role = "user"

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """All turns, the open one only if it has text."""
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
            ProgramError: there is no text before it.
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


class BaseConversation:
    """The turns so far, of the program and of a model of any kind.

    Text goes to the turn that is open: at first the user's, and once the model has answered, the assistant's, which
    the model then continues.

    Args:
        chat: whether turns are spelled by the model's chat template; else all text is taken as it is, and there are no
            turns.
    """

    def __init__(self, *, chat: bool = True) -> None:
        self._turns = Turns(chat=chat)

    @property
    def transcript(self) -> str:
        """The transcript of all turns."""
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

    def written(self, text: str, tokens: Sequence[int] = ()) -> None:
        """Note what the model has added, and with which tokens, where they are known."""
        self._turns.say(text)

    def take_back(self, tokens: Sequence[int]) -> None:
        """Forget what the model has added and was not ``written``: these tokens, where they are known."""

    def read(self) -> None:
        """Let the model read the conversation so far, so that forks share its cache, if there is one."""

    def fork(self) -> Self:
        """Return an independent conversation with the same turns, and what is cached of them."""
        made = copy.copy(self)
        made._turns = self._turns.fork()
        return made

    def close(self) -> None:
        """Free the cache, if there is one."""


@final
class Conversation(BaseConversation):
    """The turns of a conversation with an autoregressive model.

    The context is brought up to date when the model answers: the key-value cache keeps all that did not change,
    whatever the chat template does to earlier turns.
    """

    def __init__(self, model: LanguageModel, *, chat: bool = True) -> None:
        super().__init__(chat=chat)
        self._context = Context(model)
        self._read = 0  # characters of the open turn that are in the context
        self._is_ready = False  # so is all before them

    @property
    def model(self) -> LanguageModel:
        """The language model."""
        return self._context.model

    def turn(self, role: Role, text: str) -> None:
        """See ``BaseConversation.turn``."""
        super().turn(role, text)
        self._read, self._is_ready = 0, False

    def ready(self, hint: str = "") -> Context:
        """Return the context in which the model is to go on.

        ``hint`` is added to the end of the user's turn, for the answers in the assistant's turn that is then opened.

        Raises:
            ProgramError: the conversation is empty.
            ModelError: the chat template refuses the turns.
        """
        context, turns = self._context, self._turns
        if turns.chat and not (turns.is_answer and self._is_ready):
            turns.open_answer()
            context.replace(context.model.encode_prompt(prompt_of(with_hint(turns.closed, hint))))
            self._read, self._is_ready = 0, True
        unread = turns.text[self._read :]
        if unread:
            context.append(context.model.encode_prompt(unread, chat=False))
            self._read = len(turns.text)
        if not len(context):
            context.append(context.model.encode_prompt("", chat=False))
        return context

    def read(self) -> None:
        """See ``BaseConversation.read``."""
        if self._is_ready or not self._turns.chat:
            self.ready()
        elif self._turns.messages:
            self._context.replace(self._context.model.encode_prompt(prompt_of(self._turns.messages)))
        self._context.read()

    def written(self, text: str, tokens: Sequence[int] = ()) -> None:
        """See ``BaseConversation.written``; the tokens are in the context already."""
        super().written(text, tokens)
        self._read += len(text)

    def take_back(self, tokens: Sequence[int]) -> None:
        """See ``BaseConversation.take_back``."""
        self._context.truncate(len(self._context) - len(tokens))

    def fork(self) -> Self:
        """See ``BaseConversation.fork``."""
        made = super().fork()
        made._context = self._context.fork()
        return made

    def close(self) -> None:
        """See ``BaseConversation.close``."""
        self._context.close()


def prompt_of(turns: Sequence[dict[str, str]]) -> str | list[dict[str, str]]:
    """One message of the user is a text, so that models without a template can take it."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turns[0]["content"]
    return list(turns)


def with_hint(turns: tuple[dict[str, str], ...], hint: str) -> tuple[dict[str, str], ...]:
    """The turns with a sentence at the end of the user's last turn, or in one of its own after another turn."""
    if not hint:
        return turns
    if turns and turns[-1]["role"] == "user":
        return (*turns[:-1], {"role": "user", "content": f"{turns[-1]['content']}\n\n{hint}"})
    return (*turns, {"role": "user", "content": hint})
