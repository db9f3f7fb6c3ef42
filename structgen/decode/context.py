"""The tokens in front of a model, with what the model has made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import LanguageModel, Session

__all__ = ["Context"]


@final
class Context:
    """A sequence of tokens that generations go on from, and its session.

    The session (the key-value cache) holds a beginning of the tokens; the rest reaches the model with the next forward
    pass.  So text can be added, taken back or exchanged at no cost but that of what changed.

    Close it, or use it in a ``with`` statement, to free the cache.

    Args:
        model: the language model.
        tokens: token ids to begin with.
    """

    __slots__ = ("_session", "_tokens", "model")

    def __init__(self, model: LanguageModel, tokens: Sequence[int] = ()) -> None:
        self.model = model
        self._tokens = list(tokens)
        self._session = model.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All token ids."""
        return tuple(self._tokens)

    @property
    def unseen(self) -> list[int]:
        """The tokens at the end that the model has not been given yet."""
        return self._tokens[self._session.length :]

    @property
    def session(self) -> Session:
        """The model's state over the tokens that it was given."""
        return self._session

    @property
    def forwards(self) -> int:
        """Forward passes that were run for this context; a fork starts at zero."""
        return self._session.forwards

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        self._tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Drop all tokens from position ``length`` on.

        The last one that stays is left to the next forward pass, which tells what follows it.

        Raises:
            ValueError: ``length`` is negative or larger than the sequence.
        """
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"length must lie between 0 and {len(self._tokens)}; found {length}")
        del self._tokens[length:]
        if self._session.length >= length:
            self._session.truncate(max(length - 1, 0))

    def replace(self, tokens: Sequence[int]) -> None:
        """Exchange the whole sequence; what it has in common with the old one, from the beginning on, stays cached."""
        common = 0
        for old, new in zip(self._tokens, tokens, strict=False):
            if old != new:
                break
            common += 1
        self.truncate(common)
        self.append(tokens[common:])

    def prepare(self) -> None:
        """See to it that the next forward pass has a token to run, the last one again if need be.

        Raises:
            ValueError: there are no tokens at all.
        """
        if not self._tokens:
            raise ValueError("a context must hold a token before anything can be generated")
        self.truncate(len(self._tokens))

    def read(self) -> None:
        """Run all tokens but the last, which the next forward pass begins with."""
        unseen = self.unseen
        if len(unseen) > 1:
            self._session.extend(unseen[:-1])

    def fork(self) -> Context:
        """Return an independent context with the same tokens, and what is cached of them."""
        copy = Context.__new__(Context)
        copy.model = self.model
        copy._tokens = list(self._tokens)
        copy._session = self._session.fork()
        return copy

    def close(self) -> None:
        """Free the cache; the tokens stay."""
        self._session.close()

    def __repr__(self) -> str:
        return f"<Context of {len(self._tokens)} tokens, {self._session.length} cached, {self.model.name}>"
