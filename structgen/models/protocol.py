"""What a decoder needs from a language model, and nothing more.

The decode layer knows only these protocols and numpy; no tensor of any framework crosses them.  A
``LanguageModel`` is shared and unchanging; a ``Session`` is the state of one sequence (its key-value cache).

Logits come as arrays, or stay where the model made them and are asked (``ResidentSession``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.token_tree import TokenTree

__all__ = [
    "Choosing",
    "Chosen",
    "Extension",
    "LanguageModel",
    "LayeredSession",
    "Logits",
    "Mixture",
    "PackedModel",
    "Progress",
    "Prompt",
    "Question",
    "ResidentLogits",
    "ResidentSession",
    "Scoring",
    "Session",
    "Shaping",
    "SkippingSession",
    "States",
    "SuperposableSession",
    "TreeSession",
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
class TreeSession(Session, Protocol):
    """A session that runs several continuations in one forward pass; optional."""

    @property
    def can_branch(self) -> bool:
        """Whether it does: a session may have the methods and sit on a model that does not allow it."""

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """Append tokens and, in the same forward pass, look at what would come after each token of a tree behind them.

        Each token of the tree sees the sequence and its own ancestors alone.  The sequence grows by ``token_ids`` only;
        ``keep`` says what else becomes part of it.  Any other call drops the tree.

        Args:
            token_ids: as for ``extend``.
            tree: what may come after them; its tokens and positions have to fit the context as well.
            all_positions: whether logits are wanted after each of ``token_ids`` or after the last.

        Returns:
            float32 ``[rows + len(tree.token_ids), vocabulary.size]``: ``len(token_ids)`` rows or one, and one after
            each token of the tree; the caller owns the array.

        Raises:
            GenerationError: as ``extend``; or it is no tree.
        """

    def keep(self, nodes: Sequence[int], /) -> None:
        """Append tokens of the last tree to the sequence, without a forward pass, and drop the others.

        Args:
            nodes: indices of the tree from a root down, each the parent of the next; none drops the whole tree.

        Raises:
            GenerationError: there is no tree, or no such path in it.
        """


class Shaping(NamedTuple):
    """What is made of a law before a token is drawn from it: see ``structgen.decode.sampler.Multinomial``.

    Attributes:
        temperature: logits are divided by it; 0 takes the most probable token, of equal ones that with the lowest id.
        top_k: only so many most probable tokens; None is all.
        top_p: only the fewest most probable tokens that have at least this probability together; None is all.
        min_p: only tokens with at least so many times the probability of the most probable one; None is all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


class Choosing(NamedTuple):
    """A question to a row of logits: which token is taken of those that a mask allows?

    Attributes:
        row: which.
        mask: int32 words in the machine's order, ``ceil(size / 32)`` of them: bit ``i & 31`` of word ``i >> 5`` stands
            for token ``i``.
        shape: what the token is drawn from.
        uniform: in [0, 1): the token is the first at which the running sum of the shaped law, in the order of ids,
            exceeds it; without a meaning where the temperature is 0.
    """

    row: int
    mask: bytes
    shape: Shaping
    uniform: float = 0.0


class Scoring(NamedTuple):
    """A question to a row of logits: how probable is a token?  As ``Choosing`` where it alone is allowed.

    Attributes:
        row: which.
        token: its id.
    """

    row: int
    token: int


Question: TypeAlias = "Choosing | Scoring"
"""What a row of logits can be asked."""


class Chosen(NamedTuple):
    """What a row of logits answered; sums are in float32.

    Attributes:
        token: the id; -1 where none of the allowed tokens is possible.
        log_p: its log-probability among the allowed ones, before shaping.
        log_z: log of the probability of all allowed ones together; minus infinity where there is none.
        is_finite: whether the row is a law: without NaN, and without plus infinity.
    """

    token: int
    log_p: float
    log_z: float
    is_finite: bool


@runtime_checkable
class ResidentLogits(Protocol):
    """The logits of one forward pass where the model made them, ``[n, size]``; only answers leave that place.

    They outlive the pass: later passes do not change them.  An answer is remembered, so to ask again costs nothing.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""

    def was_run(self, row: int, /) -> bool:
        """Whether a row was computed; of one that was not nothing may be asked, and on the host it is NaN."""

    def host(self, row: int, /) -> Logits:
        """Return a row, float32 ``[size]``: copied where it is asked for first, the same array ever after."""

    def foresee(self, questions: Sequence[Question], /) -> None:
        """Find the answers to all questions together: one transfer, and one wait for the model."""

    def ask(self, question: Question, /) -> Chosen:
        """Return an answer, from what was foreseen where it was."""

    def top(self, rows: Sequence[int], count: int, /) -> tuple[NDArray[np.int64], Logits]:
        """Return the tokens with the largest logits of rows, the largest first, and their logits.

        Returns:
            Token ids and float32 logits, each ``[len(rows), min(count, size)]``; the order of equal ones is left open.
        """

    def arranged(self, rows: Sequence[int], /) -> ResidentLogits:
        """Return the same logits in another order; -1 stands for a row that was not computed."""


@runtime_checkable
class ResidentSession(Session, Protocol):
    """A session whose logits can stay where the model made them; optional."""

    @property
    def is_resident(self) -> bool:
        """Whether that is worth while: a session may have the methods and sit on a model whose logits are at hand."""

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """Do what ``extend``, ``extend_all`` and ``extend_tree`` do, and leave the logits where they are.

        Args:
            token_ids: as for ``extend``.
            all_positions: whether logits are wanted after each of ``token_ids`` or after the last.
            tree: as for ``extend_tree``; only where the session can branch.

        Returns:
            ``len(token_ids)`` rows or one, and one after each token of the tree.

        Raises:
            GenerationError: as these.
        """


class TrimmedHead(Protocol):
    """Some rows of an output head."""

    @property
    def ids(self) -> NDArray[np.intp]:
        """The tokens that they stand for, in the order of the logits that the head gives."""


class SkippingSession(Protocol):
    """What follows the tokens of a session, run through some layers of its network: a cheap guess at the rest.

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


class Extension(NamedTuple):
    """What a session is to be extended by.

    Attributes:
        session: which.
        token_ids: as for ``Session.extend``.
        all_positions: whether logits are wanted after each token (``extend_all``) or after the last (``extend``).
        tree: what is looked at behind them (``TreeSession.extend_tree``); None for nothing.
    """

    session: Session
    token_ids: Sequence[int]
    all_positions: bool
    tree: TokenTree | None = None


@runtime_checkable
class PackedModel(LanguageModel, Protocol):
    """A model that can run several of its sequences in one forward pass; optional."""

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """Append tokens to several sessions in one forward pass, which counts as one for each of them.

        Args:
            extensions: of sessions of this model, none of them twice.

        Returns:
            For each what its ``extend``, ``extend_all`` or ``extend_tree`` would have returned, up to rounding of
            float32 sums.

        Raises:
            GenerationError: one of them is not possible; then no session is extended.
        """
