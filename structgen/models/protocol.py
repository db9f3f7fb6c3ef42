"""What a decoder needs from a language model, and nothing more.

The decode layer knows only these protocols and numpy; no tensor of any framework crosses them.  A
``LanguageModel`` is shared and unchanging; a ``Session`` is the state of one sequence (its key-value cache).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "Extension",
    "LanguageModel",
    "Logits",
    "Mixture",
    "PackedModel",
    "Progress",
    "Prompt",
    "Session",
    "SuperposableSession",
    "silent",
]

Prompt: TypeAlias = "str | Sequence[Mapping[str, str]]"
"""A text, or the messages of a chat: mappings with ``role`` and ``content``."""

Logits: TypeAlias = "NDArray[np.float32]"
"""Unnormalised log-probabilities, ``[size]`` or ``[tokens, size]`` with the vocabulary's ``size``."""

Mixture: TypeAlias = "Mapping[int, float]"
"""Several tokens in one position: token ids with weights, which are positive and sum to 1."""


class Progress(Protocol):
    """Called as a long step moves on, always from the thread that asked for the step."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are through.

        Args:
            stage: a short English phrase; a new one says that the stage before it is over.
            done: units that are through; what a unit is (bytes, tensors) depends on the stage.
            total: units in all; None where that is not known.
        """


def silent(stage: str, done: int, total: int | None, /) -> None:
    """Report nothing: the ``Progress`` of callers who asked for none."""


@runtime_checkable
class Session(Protocol):
    """One sequence and its key-value cache; not for use by two threads at a time.

    Invariant: what a session answers depends on its tokens alone, not on how they were split into calls, nor
        on what was truncated or forked before (up to rounding of float32 sums).
    """

    @property
    def length(self) -> int:
        """Tokens in the sequence."""

    @property
    def forwards(self) -> int:
        """Forward passes that this session has run; a fork starts at zero."""

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """Append tokens in one forward pass and return the logits after the last of them.

        Returns:
            float32 ``[vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: no tokens, an id that the model lacks, or more tokens than its context holds.
        """

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """Append tokens in one forward pass and return the logits after each of them.

        Returns:
            float32 ``[len(token_ids), vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: as ``extend``.
        """

    def truncate(self, length: int, /) -> None:
        """Drop all tokens from position ``length`` on.

        Raises:
            GenerationError: ``length`` is negative or larger than the sequence.
        """

    def fork(self) -> Session:
        """Return an independent session with the same tokens."""

    def close(self) -> None:
        """Free the cache; the session is empty afterwards and may be used again."""


@runtime_checkable
class SuperposableSession(Session, Protocol):
    """A session that reads several tokens in one position; optional.

    From the first mixture of several tokens on, what it holds is no sequence of tokens: what it answers is no law of
    the model's, and ``length`` counts positions.  So such a session belongs to the strategy that mixes, which cuts it
    below the first of them, or closes it, before anyone else reads on.  ``truncate`` and ``fork`` work as ever, in
    front of mixtures and behind them.
    """

    def extend_mixed(self, mixtures: Sequence[Mixture], /) -> Logits:
        """Append mixtures, one position each, in one forward pass and return the logits after the last of them.

        A mixture of one token is that token, exactly.

        Returns:
            float32 ``[vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: as ``extend``; or weights that are not positive or do not sum to 1.
        """


@runtime_checkable
class LanguageModel(Protocol):
    """An autoregressive model with its tokenizer."""

    @property
    def name(self) -> str:
        """What messages and reports call the model."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, as wide as the logits."""

    @property
    def max_context(self) -> int | None:
        """The longest sequence; None where the model states no bound."""

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the token ids of a prompt; never none, so that there is something to extend a session by.

        A text becomes one user message of the model's chat template, ready for the assistant's answer, unless
        ``chat`` is false or the model has no template: then it is taken as it is.  Special tokens that are
        spelled out in a prompt are read as special tokens, as the model's own tokenizer does.

        Raises:
            ModelError: messages are malformed, the template refuses them, or the model has no template for
                them.
        """

    def start(self) -> Session:
        """Return an empty session."""


class Extension(NamedTuple):
    """What a session is to be extended by.

    Attributes:
        session: which.
        token_ids: as for ``Session.extend``.
        all_positions: whether logits are wanted after each token (``extend_all``) or after the last (``extend``).
    """

    session: Session
    token_ids: Sequence[int]
    all_positions: bool


@runtime_checkable
class PackedModel(LanguageModel, Protocol):
    """A model that can run several of its sequences in one forward pass; optional."""

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """Append tokens to several sessions in one forward pass, which counts as one for each of them.

        Args:
            extensions: of sessions of this model, none of them twice.

        Returns:
            For each what its ``extend`` or ``extend_all`` would have returned, up to rounding of float32 sums.

        Raises:
            GenerationError: one of them is not possible; then no session is extended.
        """
