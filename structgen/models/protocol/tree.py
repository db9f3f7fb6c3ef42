"""Optional features of sessions: token trees in one forward pass, and logits that stay on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from structgen.errors import GenerationError, number_of
from structgen.models.protocol.language import LanguageModel, Logits, Session

__all__ = [
    "Extension",
    "LogitsQuery",
    "PackedModel",
    "ResidentLogits",
    "ResidentModel",
    "ResidentSession",
    "SampleAnswer",
    "SampleQuery",
    "SamplingParams",
    "ScoreQuery",
    "TokenTree",
    "TreeSession",
]


class SamplingParams(NamedTuple):
    """Sampling parameters; see ``structgen.decode.step.sampler.Multinomial``.

    Attributes:
        temperature: divides the logits; 0 selects the most probable token, ties by the lowest id.
        top_k: keep only this many most probable tokens; None keeps all.
        top_p: keep the smallest set of most probable tokens with at least this total probability; None keeps all.
        min_p: keep tokens with at least this fraction of the largest probability; None keeps all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


class SampleQuery(NamedTuple):
    """A query to a logits row: sample one of the tokens that a mask allows.

    Attributes:
        row: index of the logits row.
        mask: the bitmask, ``ceil(size / 32)`` int32 words in the machine's byte order: bit ``i & 31`` of word
            ``i >> 5`` stands for token ``i``.
        shape: the sampling parameters.
        uniform: in [0, 1): the token is the first, in the order of ids, at which the cumulative probability exceeds it;
            ignored at temperature 0.
    """

    row: int
    mask: bytes
    shape: SamplingParams
    uniform: float = 0.0


class ScoreQuery(NamedTuple):
    """A query to a logits row: the probability of one token, as ``SampleQuery`` with only that token allowed.

    Attributes:
        row: index of the logits row.
        token: the token id.
    """

    row: int
    token: int


LogitsQuery: TypeAlias = "SampleQuery | ScoreQuery"
"""A query to a logits row."""


class SampleAnswer(NamedTuple):
    """The answer of a logits row; sums are in float32.

    Attributes:
        token: the token id; -1 if no allowed token has probability.
        log_p: the token's log-probability among the allowed tokens, before the sampling parameters.
        log_z: log of the total probability of the allowed tokens; minus infinity if they have none.
        is_finite: whether the row is a distribution: no NaN and no plus infinity.
    """

    token: int
    log_p: float
    log_z: float
    is_finite: bool


@runtime_checkable
class ResidentLogits(Protocol):
    """The on-device logits of one forward pass, ``[n, size]``; only answers are copied to the host.

    Later passes do not change the logits.  Answers are cached.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""

    def was_run(self, row: int, /) -> bool:
        """Whether a row was computed; a row that was not must not be queried, and is NaN on the host."""

    def host(self, row: int, /) -> Logits:
        """Return a row, float32 ``[size]``; the first call copies it, later calls return the same array."""

    def prefetch(self, queries: Sequence[LogitsQuery], /) -> None:
        """Prefetch the answers to all queries with one transfer and one wait for the model."""

    def ask(self, query: LogitsQuery, /) -> SampleAnswer:
        """Return the answer to a query, from the cache if it was prefetched."""

    def top(self, rows: Sequence[int], count: int, /) -> tuple[NDArray[np.int64], Logits]:
        """Return the tokens with the largest logits of each row, the largest first, and their logits.

        Returns:
            Token ids and float32 logits, each ``[len(rows), min(count, size)]``; the order of ties is unspecified.
        """

    def arranged(self, rows: Sequence[int], /) -> ResidentLogits:
        """Return the same logits in another order; -1 stands for a row that was not computed."""


@runtime_checkable
class ResidentSession(Session, Protocol):
    """A session whose logits can stay on the device; optional."""

    @property
    def is_resident(self) -> bool:
        """Whether the logits stay on the device; a session may have the methods while its logits are on the host."""

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """Run ``extend``, ``extend_all`` or ``extend_tree`` with logits that stay on the device.

        Args:
            token_ids: as for ``extend``.
            all_positions: whether to return logits after each of ``token_ids`` or only after the last.
            tree: as for ``extend_tree``; only if the session can branch.

        Returns:
            ``len(token_ids)`` rows or one row, then one row for each token of the tree.

        Raises:
            GenerationError: as ``extend``, ``extend_all`` or ``extend_tree``.
        """


@runtime_checkable
class TreeSession(Session, Protocol):
    """A session that runs several continuations in one forward pass; optional."""

    @property
    def can_branch(self) -> bool:
        """Whether the model supports trees; a session may have the methods while its model does not."""

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """Append tokens and, in the same forward pass, run a tree of possible continuations.

        Each token of the tree attends to the sequence and to its own ancestors.  The sequence grows by ``token_ids``
        only; ``keep`` appends tokens of the tree.  Any other call drops the tree.

        Args:
            token_ids: as for ``extend``.
            tree: the continuations; its tokens and positions must fit the context as well.
            all_positions: whether to return logits after each of ``token_ids`` or only after the last.

        Returns:
            float32 ``[rows + len(tree.token_ids), vocabulary.size]``: ``len(token_ids)`` rows or one row, then one row
            for each token of the tree; the caller owns the array.

        Raises:
            GenerationError: as ``extend``; or the tree is malformed.
        """

    def keep(self, nodes: Sequence[int], /) -> None:
        """Append tokens of the last tree to the sequence, without a forward pass, and drop the others.

        Args:
            nodes: indices of a path from a root down; none drops the whole tree.

        Raises:
            GenerationError: there is no tree, or the tree has no such path.
        """


class Extension(NamedTuple):
    """A session and the tokens to extend it by.

    Attributes:
        session: the session.
        token_ids: as for ``Session.extend``.
        all_positions: whether to return logits after each token (``extend_all``) or after the last (``extend``).
        tree: the tree after the tokens (``TreeSession.extend_tree``), or None.
    """

    session: Session
    token_ids: Sequence[int]
    all_positions: bool
    tree: TokenTree | None = None


@runtime_checkable
class PackedModel(LanguageModel, Protocol):
    """A model that can run several sequences in one forward pass; optional."""

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """Append tokens to several sessions in one forward pass, which counts as one for each of them.

        Args:
            extensions: one for each session, all of this model; no session twice.

        Returns:
            For each extension the result of ``extend``, ``extend_all`` or ``extend_tree``, up to rounding of float32
            sums.

        Raises:
            GenerationError: one extension is not possible; then no session is extended.
        """


@runtime_checkable
class ResidentModel(PackedModel, Protocol):
    """A ``PackedModel`` whose logits can stay on the device; optional."""

    @property
    def is_resident(self) -> bool:
        """Whether the logits stay on the device."""

    def extend_many_resident(self, extensions: Sequence[Extension], /) -> list[ResidentLogits]:
        """Run ``extend_many`` with logits that stay on the device: for each extension those of ``extend_resident``."""


class TokenTree(NamedTuple):
    """Continuations of one sequence that share their prefixes.

    Attributes:
        token_ids: the tokens, each after its parent.
        parents: the index of each token's parent; -1 for a token that follows the sequence itself.
    """

    token_ids: Sequence[int]
    parents: Sequence[int]

    def depths(self) -> list[int]:
        """Return the number of ancestors of each token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def ancestors(self) -> NDArray[np.bool_]:
        """Return ``[n, n]``: whether token ``j`` is token ``i`` or one of its ancestors."""
        size = len(self.parents)
        seen = np.zeros((size, size), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = True
        return seen

    def first_chain(self) -> list[int]:
        """Return the path of indices from the first root down that takes the first child at each fork."""
        chain: list[int] = []
        last = -1
        for node, parent in enumerate(self.parents):
            if parent == last:
                chain.append(node)
                last = node
        return chain

    def check(self, *, name: str) -> None:
        """Check that this is a tree, for a model of this name.

        Raises:
            GenerationError: there are no tokens, the two lengths differ, or a parent does not precede its child.
        """
        subject = f"model {name!r}"
        if not len(self.token_ids) or len(self.token_ids) != len(self.parents):
            raise GenerationError(
                subject,
                "a tree needs tokens, and a parent for each",
                evidence=f"found {number_of(len(self.token_ids), 'token')} and "
                f"{number_of(len(self.parents), 'parent')}",
            )
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise GenerationError(
                    subject, "a parent must precede its child", evidence=f"token {node} has the parent {parent}"
                )

    def check_path(self, nodes: Sequence[int], *, name: str) -> None:
        """Check that nodes, indices of tokens, are a path down from a root, for a model of this name.

        Raises:
            GenerationError: the nodes are no such path.
        """
        last = -1
        for node in nodes:
            if not 0 <= node < len(self.parents) or self.parents[node] != last:
                raise GenerationError(
                    f"model {name!r}", "no such path in the tree", evidence=f"{list(nodes)} in {list(self.parents)}"
                )
            last = node
