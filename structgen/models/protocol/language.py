"""Language models and their sessions: prompts, logits, hidden states.

A ``LanguageModel`` is shared and immutable; a ``Session`` is the state of one sequence (its key-value cache).
Optional protocols extend a session: mixtures of tokens in one position, and access to the network layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final, runtime_checkable

from structgen.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "Chat",
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


@final
class Chat(list[dict[str, Any]]):
    """Messages with tools: a ``Prompt`` for models whose chat template tells the model what it may call.

    Attributes:
        tools: each ``{"type": "function", "function": {"name": ..., "parameters": schema}}``.
        variables: further ones of the chat template, JSON values by name.  Those that every template has stay as they
            are, and spellings of control tokens are text.
    """

    def __init__(
        self,
        messages: Iterable[Mapping[str, Any]],
        tools: Iterable[dict[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(dict(message) for message in messages)
        self.tools = list(tools)
        self.variables = dict(variables or {})


Logits: TypeAlias = "NDArray[np.float32]"
"""Unnormalised log-probabilities, ``[size]`` or ``[tokens, size]`` with the vocabulary's ``size``."""

States: TypeAlias = "NDArray[np.float32]"
"""Hidden states of a network, ``[..., width]``."""

Mixture: TypeAlias = "Mapping[int, float]"
"""Several tokens in one position: token ids with weights, which are positive and sum to 1."""


@runtime_checkable
class Session(Protocol):
    """One sequence and its key-value cache; not thread-safe.

    Invariant: the logits depend on the tokens alone (up to rounding of float32 sums), not on how they were split into
        calls, nor on earlier ``truncate`` or ``fork``.
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
            GenerationError: no tokens, an id that the model lacks, or more tokens than fit its context.
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

    After a mixture of several tokens the session holds no sequence of tokens: its logits are no distribution of the
    model, and ``length`` counts positions.  The strategy that mixes must truncate the session before the first mixture,
    or close it, before others use it.  ``truncate`` and ``fork`` work before and after mixtures.
    """

    def extend_mixed(self, mixtures: Sequence[Mixture], /) -> Logits:
        """Append mixtures, one position each, in one forward pass and return the logits after the last of them.

        A mixture of one token is exactly that token.

        Returns:
            float32 ``[vocabulary.size]``; the caller owns the array.

        Raises:
            GenerationError: as ``extend``; or weights that are not positive or do not sum to 1.
        """


class TrimmedHead(Protocol):
    """Some rows of an output head."""

    @property
    def ids(self) -> NDArray[np.intp]:
        """The tokens of the rows, in the order of the head's logits."""


class SkippingSession(Protocol):
    """A cheap draft that continues a session through some layers of its network only.

    It reads the keys and values of the session, and writes its own where the session's next pass will write.  So it
    costs nothing to create or drop, and is invalid once the session is extended, truncated or closed, or starts another
    draft.
    """

    @property
    def length(self) -> int:
        """Tokens of the session and of the draft."""

    def extend(self, token_ids: Sequence[int], /, *, head: TrimmedHead | None = None) -> Logits:
        """Append tokens in one pass through these layers and return the logits after the last of them.

        Args:
            token_ids: as for ``Session.extend``.
            head: the rows of the output head to compute; None for all tokens.

        Returns:
            float32 ``[vocabulary.size]``, or ``[len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: as ``Session.extend``; or more tokens than the draft's capacity; or the session has
                changed.
        """

    def truncate(self, length: int, /) -> None:
        """Drop all tokens from position ``length`` on.

        Raises:
            GenerationError: ``length`` is smaller than the session's length, or larger than the sequence.
        """


@runtime_checkable
class LayeredSession(Session, Protocol):
    """A session with access to its network layer by layer; optional.

    Layers are counted from 0.  State ``l`` of a token is the input of layer ``l``: state 0 is the embedding, and state
    ``layers`` is the input of the final norm and the output head.

    Attributes:
        watched: the states to record in the next passes; by default none, at no cost.
    """

    watched: tuple[int, ...]

    @property
    def layers(self) -> int:
        """How many layers the network has."""

    @property
    def width(self) -> int:
        """Elements of a state."""

    @property
    def states(self) -> Mapping[int, States]:
        """The recorded states of the last pass: for each watched layer float32 ``[rows, width]``.

        There is one row per token of the pass, then one per token of its tree.
        """

    def embedded(self, token_ids: Sequence[int], /) -> States:
        """Return state 0 of tokens, ``[len(token_ids), width]``.

        Raises:
            GenerationError: an id that the model lacks.
        """

    def through(self, layer: int, states: States, position: int, /) -> States:
        """Return the output of a layer for other states of one token, ``[rows, width]``; the session is unchanged.

        Each state attends to the session's earlier tokens and to itself.

        Args:
            layer: the layer's index.
            states: the input of the layer, ``[rows, width]``.
            position: the token's position, less than ``length``.

        Raises:
            GenerationError: there is no such layer or position.
        """

    def trimmed(self, token_ids: Sequence[int] | NDArray[np.intp], /) -> TrimmedHead:
        """Return the rows of the output head for some tokens, at least one; O(tokens), so keep the result.

        Raises:
            GenerationError: there are none, or an id that the model lacks.
        """

    def exit_logits(self, states: States, /, *, head: TrimmedHead | None = None) -> Logits:
        """Return the logits of states of any layer, by the final norm and the output head.

        Args:
            states: ``[rows, width]``.
            head: the rows of the output head to compute; None for all tokens.

        Returns:
            float32 ``[rows, vocabulary.size]``, or ``[rows, len(head.ids)]``; the caller owns the array.
        """

    def skipping(self, kept: Sequence[int], /, *, capacity: int) -> SkippingSession:
        """Return a draft after the session's tokens that runs some layers only; O(1), and the session is unchanged.

        Args:
            kept: the layers to run, ascending; none runs only the embedding and the head.
            capacity: the draft's capacity in tokens.

        Raises:
            GenerationError: the layers are not in ascending order or not of the network, or the context is too short.
        """


@runtime_checkable
class LanguageModel(Protocol):
    """An autoregressive model with its tokenizer."""

    @property
    def name(self) -> str:
        """The model's name in messages and reports."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, as wide as the logits."""

    @property
    def max_context(self) -> int | None:
        """The maximum length of a sequence; None: the model states no bound."""

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the token ids of a prompt, at least one.

        A text becomes one user message of the model's chat template, ready for the assistant's answer.  If ``chat`` is
        false or the model has no template, the text itself is encoded.  Control tokens come from the template alone:
        what spells one in a text is encoded as text.

        Raises:
            ModelError: messages are malformed, the template refuses them, or messages are given without a template.
        """

    def start(self) -> Session:
        """Return an empty session."""
