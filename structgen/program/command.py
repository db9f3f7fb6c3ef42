"""The commands that a generator program may yield besides text and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

if TYPE_CHECKING:
    from structgen.decode import AnyCanvasSampler, AnyPotential, AnySampler
    from structgen.program.backends.canvas_answer import CanvasConversation
    from structgen.program.backends.remote_answer import RemoteConversation
    from structgen.program.conversation import Conversation, Role

__all__ = [
    "AnyConversation",
    "Ask",
    "Branch",
    "BranchCommand",
    "ForkCommand",
    "TurnCommand",
    "ask",
    "assistant",
    "fork",
    "system",
    "user",
]

AnyConversation: TypeAlias = "Conversation | CanvasConversation | RemoteConversation"
"""The conversation so far, with a model of any kind."""


@final
@dataclass(frozen=True, slots=True)
class TurnCommand:
    """Close the turn that is open, and open one of ``role`` with ``text``."""

    role: Role
    text: str


@final
@dataclass(frozen=True, slots=True)
class Ask:
    """Let the model write something of ``annotation``; None leaves a setting to the program."""

    annotation: Any
    max_tokens: int | None = None
    sampler: AnySampler | AnyCanvasSampler | None = None
    tries: int | None = None
    potentials: tuple[AnyPotential, ...] = ()
    think: int | None = None


@final
@dataclass(frozen=True, slots=True)
class ForkCommand:
    """Make ``count`` branches that share the conversation so far."""

    count: int


@final
@dataclass(eq=False, slots=True)
class Branch:
    """A conversation of its own that began as a copy; yield it to go on from there.

    Attributes:
        index: its number among its siblings, from 0.
        conversation: its turns.
    """

    index: int
    conversation: AnyConversation

    def say(self, text: str) -> BranchCommand:
        """Add text to this branch: yield it."""
        return BranchCommand(self, text)

    def ask(self, annotation: Any, **settings: Any) -> BranchCommand:
        """Let the model continue this branch: yield it, and take the value; settings as in ``ask``."""
        return BranchCommand(self, ask(annotation, **settings))

    def turn(self, role: Role, text: str = "") -> BranchCommand:
        """Open a turn in this branch: yield it."""
        return BranchCommand(self, TurnCommand(role, text))


@final
@dataclass(frozen=True, slots=True)
class BranchCommand:
    """Do ``what`` in a branch, and go on where the program was."""

    branch: Branch
    what: str | Ask | TurnCommand


def system(text: str) -> TurnCommand:
    """A turn of the system: yield it."""
    return TurnCommand("system", text)


def user(text: str) -> TurnCommand:
    """A turn of the user: yield it."""
    return TurnCommand("user", text)


def assistant(text: str = "") -> TurnCommand:
    """A turn of the assistant, whom the next answer goes on: yield it."""
    return TurnCommand("assistant", text)


def ask(
    annotation: Any,
    *,
    max_tokens: int | None = None,
    sampler: AnySampler | AnyCanvasSampler | None = None,
    tries: int | None = None,
    potentials: Sequence[AnyPotential] = (),
    think: int | None = None,
) -> Ask:
    """Let the model answer, with settings of its own, when it is yielded.

    Example: ``x = yield structgen.ask(int, max_tokens=4)``.

    Args:
        annotation: a type, or a grammar.
        max_tokens: the most tokens of this answer; None leaves it to the program, as with the others.
        sampler: chooses tokens, writes the whole answer, or takes completions of its canvas.
        tries: the maximum number of samples of a field that its type's validators refuse.
        potentials: further conditions or weights of the answer, in addition to those of the program: potentials,
            constraints, or functions of the text.
        think: the most tokens of a thought before it; 0 for none.
    """
    return Ask(annotation, max_tokens, sampler, tries, tuple(potentials), think)


def fork(count: int) -> ForkCommand:
    """Make branches that share the conversation so far, to be yielded.

    Example: ``first, second = yield structgen.fork(2)``.

    Raises:
        ValueError: ``count`` is less than 1.
    """
    if count < 1:
        raise ValueError(f"fork: count must be at least 1; found {count}")
    return ForkCommand(count)
