"""Sessions that run trees of tokens in one forward pass, and logits that stay on the model's device.

A model may offer either; a decoder asks for them and does without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from structgen.errors import GenerationError
from structgen.models.protocol.language import LanguageModel, Logits, Session

__all__ = [
    "Extension",
    "LogitsQuery",
    "PackedModel",
    "ResidentLogits",
    "ResidentSession",
    "SampleAnswer",
    "SampleQuery",
    "SamplingParams",
    "ScoreQuery",
    "TokenTree",
    "TreeSession",
]


class SamplingParams(NamedTuple):
    """What is made of a distribution before a token is drawn from it.

    See ``structgen.decode.step.sampler.Multinomial``.

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


class SampleQuery(NamedTuple):
    """A question to a row of logits: which token is taken of those that a mask allows?

    Attributes:
        row: which.
        mask: int32 words in the machine's order, ``ceil(size / 32)`` of them: bit ``i & 31`` of word ``i >> 5`` stands
            for token ``i``.
        shape: what the token is drawn from.
        uniform: in [0, 1): the token is the first at which the running sum of the shaped distribution, in the order of
            ids, exceeds it; without a meaning where the temperature is 0.
    """

    row: int
    mask: bytes
    shape: SamplingParams
    uniform: float = 0.0


class ScoreQuery(NamedTuple):
    """A question to a row of logits: how probable is a token?  As ``Choosing`` where it alone is allowed.

    Attributes:
        row: which.
        token: its id.
    """

    row: int
    token: int


LogitsQuery: TypeAlias = "SampleQuery | ScoreQuery"
"""What a row of logits can be asked."""


class SampleAnswer(NamedTuple):
    """What a row of logits answered; sums are in float32.

    Attributes:
        token: the id; -1 where none of the allowed tokens is possible.
        log_p: its log-probability among the allowed ones, before shaping.
        log_z: log of the probability of all allowed ones together; minus infinity where there is none.
        is_finite: whether the row is a distribution: without NaN, and without plus infinity.
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

    def foresee(self, questions: Sequence[LogitsQuery], /) -> None:
        """Find the answers to all questions together: one transfer, and one wait for the model."""

    def ask(self, question: LogitsQuery, /) -> SampleAnswer:
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


@runtime_checkable
class TreeSession(Session, Protocol):
    """A session that runs several continuations in one forward pass; optional."""

    @property
    def can_branch(self) -> bool:
        """Whether it does: a session may have the methods and sit on a model that does not allow it."""

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """Append tokens and, in the same forward pass, look at what would come after each token of a tree after them.

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


class Extension(NamedTuple):
    """What a session is to be extended by.

    Attributes:
        session: which.
        token_ids: as for ``Session.extend``.
        all_positions: whether logits are wanted after each token (``extend_all``) or after the last (``extend``).
        tree: what is looked at after them (``TreeSession.extend_tree``); None for nothing.
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


class TokenTree(NamedTuple):
    """Continuations of one sequence that share their prefixes.

    Attributes:
        token_ids: the tokens, each after the one that it follows.
        parents: for each the index of that; -1 where it follows the sequence itself.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]

    def depths(self) -> list[int]:
        """How many tokens each has before it in the tree."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def ancestors(self) -> NDArray[np.bool_]:
        """``[n, n]``: whether token ``j`` lies on the way to token ``i``, or is that."""
        size = len(self.parents)
        seen = np.zeros((size, size), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = True
        return seen

    def first_chain(self) -> list[int]:
        """The indices from a root down: at each fork the child that stands first."""
        chain: list[int] = []
        last = -1
        for node, parent in enumerate(self.parents):
            if parent == last:
                chain.append(node)
                last = node
        return chain

    def check(self, *, name: str) -> None:
        """Refuse what is no tree.

        Args:
            name: the model, for the message.

        Raises:
            GenerationError: there are no tokens, the two lengths differ, or a parent does not stand before its child.
        """
        subject = f"model {name!r}"
        if not len(self.token_ids) or len(self.token_ids) != len(self.parents):
            raise GenerationError(
                subject,
                "a tree needs tokens, and a parent for each",
                evidence=f"found {len(self.token_ids)} tokens and {len(self.parents)} parents",
            )
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise GenerationError(
                    subject, "a parent stands before its child", evidence=f"token {node} has the parent {parent}"
                )

    def check_path(self, nodes: Sequence[int], *, name: str) -> None:
        """Refuse what does not lead down from a root.

        Args:
            nodes: indices, each of them the parent of the next.
            name: the model, for the message.

        Raises:
            GenerationError: they do not lead down.
        """
        last = -1
        for node in nodes:
            if not 0 <= node < len(self.parents) or self.parents[node] != last:
                raise GenerationError(
                    f"model {name!r}", "no such path in the tree", evidence=f"{list(nodes)} in {list(self.parents)}"
                )
            last = node
