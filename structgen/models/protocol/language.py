"""Language models and their sessions: prompts, logits, hidden states.

A ``LanguageModel`` is shared and unchanging; a ``Session`` is the state of one sequence (its key-value cache).
Optional protocols extend a session: mixtures of tokens in one position, and access to the network layer by layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "LanguageModel",
    "LayeredSession",
    "Logits",
    "Mixture",
    "Progress",
    "Prompt",
    "Session",
    "SkippingSession",
    "States",
    "SuperposableSession",
    "TrimmedHead",
    "silent",
]

Prompt: TypeAlias = "str | Sequence[Mapping[str, str]]"
"""A text, or the messages of a chat: mappings with ``role`` and ``content``."""

Logits: TypeAlias = "NDArray[np.float32]"
"""Unnormalised log-probabilities, ``[size]`` or ``[tokens, size]`` with the vocabulary's ``size``."""

States: TypeAlias = "NDArray[np.float32]"
"""Hidden states of a network, ``[..., width]``."""

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

    From the first mixture of several tokens on, what it holds is no sequence of tokens: what it answers is no
    distribution of the model's, and ``length`` counts positions.  So such a session belongs to the strategy that mixes,
    which cuts it below the first of them, or closes it, before anyone else reads on.  ``truncate`` and ``fork`` work as
    ever, in front of mixtures and after them.
    """

    def extend_mixed(self, mixtures: Sequence[Mixture], /) -> Logits:
        """Append mixtures, one position each, in one forward pass and return the logits after the last of them.

        A mixture of one token is that token, exactly.

        Returns:
            float32 ``[vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: as ``extend``; or weights that are not positive or do not sum to 1.
        """


class TrimmedHead(Protocol):
    """Some rows of an output head."""

    @property
    def ids(self) -> NDArray[np.intp]:
        """The tokens that they stand for, in the order of the logits that the head gives."""


class SkippingSession(Protocol):
    """What follows the tokens of a session, run through some layers of its network: a cheap draft at the rest.

    It reads the keys and values that the session's own passes left, and writes its own where the session's next pass
    writes.  So it is free to have and to throw away, and of no use once the session is extended, cut or closed, or has
    another one.
    """

    @property
    def length(self) -> int:
        """Tokens in the sequence: those of the session and those that came here."""

    def extend(self, token_ids: Sequence[int], /, *, head: TrimmedHead | None = None) -> Logits:
        """Append tokens in one pass through these layers and return the logits after the last of them.

        Args:
            token_ids: as for ``Session.extend``.
            head: what to compute; None for all tokens.

        Returns:
            float32 ``[vocabulary.size]``, or ``[len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: as ``Session.extend``; or there is no room for so many; or the session has moved on.
        """

    def truncate(self, length: int, /) -> None:
        """Drop all tokens from position ``length`` on.

        Raises:
            GenerationError: ``length`` is smaller than what the session had, or larger than the sequence.
        """


@runtime_checkable
class LayeredSession(Session, Protocol):
    """A session that shows its network layer by layer; optional.

    Layers are counted from 0.  The state ``l`` of a token is what goes into layer ``l``, and comes out of the one
    before: 0 is its embedding, and ``layers`` is what the final norm and the output head are given.

    Attributes:
        watched: the states that are noted in passes from now on; none by default, which costs nothing.
    """

    watched: tuple[int, ...]

    @property
    def layers(self) -> int:
        """How many layers the network has."""

    @property
    def width(self) -> int:
        """How long a state is."""

    @property
    def states(self) -> Mapping[int, States]:
        """What the last pass noted: of each watched layer float32 ``[rows, width]``.

        There is a row for each token of the pass, then one for each of its tree.
        """

    def embedded(self, token_ids: Sequence[int], /) -> States:
        """Return the state 0 of tokens, ``[len(token_ids), width]``.

        Raises:
            GenerationError: an id that the model lacks.
        """

    def through(self, layer: int, states: States, position: int, /) -> States:
        """Return what a layer would make of other states of one token, ``[rows, width]``; the session stays as it is.

        Each sees the tokens before the token, as the session's passes left them, and itself.

        Args:
            layer: which.
            states: what goes into it, ``[rows, width]``.
            position: of the token, smaller than ``length``.

        Raises:
            GenerationError: there is no such layer or position.
        """

    def trimmed(self, token_ids: Sequence[int] | NDArray[np.intp], /) -> TrimmedHead:
        """Return the rows of the output head for some tokens, at least one; O(their number), so keep it.

        Raises:
            GenerationError: there are none, or an id that the model lacks.
        """

    def exit_logits(self, states: States, /, *, head: TrimmedHead | None = None) -> Logits:
        """Return what the final norm and the output head make of states of any layer, as if it were the last.

        Args:
            states: ``[rows, width]``.
            head: what to compute; None for all tokens.

        Returns:
            float32 ``[rows, vocabulary.size]``, or ``[rows, len(head.ids)]``; the caller owns the array.
        """

    def skipping(self, kept: Sequence[int], /, *, room: int) -> SkippingSession:
        """Return a draft of what follows that runs some layers only; O(1), and the session stays as it is.

        Args:
            kept: the layers that it runs, ascending; none leaves the embedding and the head.
            room: the most tokens that it will be extended by.

        Raises:
            GenerationError: they are not layers in ascending order, or there is no room for so many tokens.
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
