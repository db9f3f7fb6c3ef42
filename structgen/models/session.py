"""Shared by the sessions of all models: passes, checks before them, and trees on sessions that only run chains."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard, TypeVar, final

import numpy as np

from structgen.errors import GenerationError, number_of
from structgen.models.protocol import TreeSession
from structgen.models.protocol.tree import TokenTree
from structgen.travel import Live

if TYPE_CHECKING:
    from structgen.models.protocol import Extension, Logits, Mixture, ResidentLogits, ResidentSession, Session

__all__ = [
    "ChainSession",
    "PackedSession",
    "SequenceLimits",
    "can_branch",
    "check_kept",
    "check_truncation",
    "extend",
    "treeless",
]

_ROUNDING: Final = 1e-6


def can_branch(session: Session) -> TypeGuard[TreeSession]:
    """Return whether a session runs trees."""
    return isinstance(session, TreeSession) and session.can_branch


class PackedSession(Live, ABC):
    """A session that runs trees, whose model runs the passes of several sessions together."""

    @abstractmethod
    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        """Run a pass; the arguments are those of an ``Extension`` of this session."""

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend``."""
        return self._run(token_ids, all_positions=False)

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend_all``."""
        return self._run(token_ids, all_positions=True)

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """See ``TreeSession.extend_tree``."""
        return self._run(token_ids, all_positions=all_positions, tree=tree)


def extend(extension: Extension, *, name: str) -> Logits:
    """Run one ``Extension`` on its session, of a model of this name.

    Raises:
        GenerationError: as the session's own methods; or the session does not run trees.
    """
    session, token_ids, all_positions, tree = extension
    if tree is None:
        return session.extend_all(token_ids) if all_positions else session.extend(token_ids)
    if can_branch(session):
        return session.extend_tree(token_ids, tree, all_positions=all_positions)
    raise treeless(name=name)


def treeless(*, name: str) -> GenerationError:
    """Return the error for a model whose sessions do not run trees."""
    return GenerationError(
        f"model {name!r}",
        "its sessions do not run trees",
        remedy="check can_branch of the session first, and run chains where it is false (ChainSession)",
    )


class SequenceLimits(NamedTuple):
    """The limits of an autoregressive model's input, and checks against them.

    Attributes:
        name: the model's name in messages.
        id_limit: one more than the largest token id that the model embeds.
        max_context: the maximum length of a sequence; None: unbounded.
    """

    name: str
    id_limit: int
    max_context: int | None

    def check_extension(self, token_ids: Sequence[int], /, *, length: int, tree: TokenTree | None = None) -> list[int]:
        """Return the ids as plain ints if they, and the tree after them, can extend a session of ``length`` tokens.

        Raises:
            GenerationError: no tokens, an id out of range, too many tokens (the message says by how many), or a
                malformed tree.
        """
        ids = self._check_ids(token_ids)
        self._check_length(length, len(ids))
        if tree is not None:
            tree.check(name=self.name)
            self._check_ids(tree.token_ids)
            self._check_length(length, len(ids) + 1 + max(tree.depths()))
        return ids

    def check_mixtures(self, mixtures: Sequence[Mixture], /, *, length: int) -> list[dict[int, float]]:
        """Return the mixtures, each in the order of ids, if they can extend a session of ``length`` positions.

        Raises:
            GenerationError: as ``check_extension``; or weights that are not positive or do not sum to 1.
        """
        checked = []
        for mixture in mixtures:
            weights = {int(token): float(weight) for token, weight in sorted(mixture.items())}
            total = math.fsum(weights.values())
            if not (min(weights.values(), default=0.0) > 0 and abs(total - 1) <= _ROUNDING):
                raise GenerationError(
                    f"model {self.name!r}",
                    "the weights of a mixture must be positive and sum to 1",
                    evidence=f"{weights} sums to {total:.9g}",
                    remedy="leave out tokens of weight 0, and divide by the sum",
                )
            self._check_ids(list(weights))
            checked.append(weights if len(weights) > 1 else dict.fromkeys(weights, 1.0))
        # One token stands for each mixture: only the number of positions is left to check.
        self.check_extension([next(iter(weights)) for weights in checked], length=length)
        return checked

    def _check_ids(self, token_ids: Sequence[int]) -> list[int]:
        subject = f"model {self.name!r}"
        ids = [int(token) for token in token_ids]
        if not ids:
            raise GenerationError(subject, "no tokens to extend the sequence by", remedy="pass at least one token id")
        if min(ids) < 0 or max(ids) >= self.id_limit:
            position, token = next((i, t) for i, t in enumerate(ids) if not 0 <= t < self.id_limit)
            raise GenerationError(
                subject,
                f"no token has the id {token}",
                evidence=f"position {position}; ids run from 0 to {self.id_limit - 1}",
            )
        return ids

    def _check_length(self, length: int, count: int) -> None:
        total = length + count
        if self.max_context is not None and total > self.max_context:
            raise GenerationError(
                f"model {self.name!r}",
                f"the sequence is {number_of(total - self.max_context, 'token')} longer than the context",
                evidence=f"{length} tokens and {count} more make {total}; the context holds {self.max_context}",
                remedy="shorten the prompt, lower max_tokens, or use a model with a longer context",
            )


def check_kept(nodes: Sequence[int], *, tree: TokenTree | None, name: str) -> TokenTree:
    """Return ``tree`` if ``nodes`` are a path down from one of its roots.

    Args:
        nodes: of the tree, each the child of the one before.
        tree: the tree of the last pass; None if that pass ran none.
        name: of the model, for messages.

    Raises:
        GenerationError: there is no tree, or the tree has no such path.
    """
    if tree is None:
        raise GenerationError(
            f"model {name!r}",
            "there is no tree to keep tokens of",
            remedy="call keep after extend_tree, before any other call",
        )
    tree.check_path(nodes, name=name)
    return tree


def check_truncation(length: int, *, held: int, name: str) -> None:
    """Raise ``GenerationError`` unless a session of ``held`` tokens can be cut to ``length``."""
    if not 0 <= length <= held:
        raise GenerationError(
            f"model {name!r}", f"a sequence cannot be cut to {length} tokens", evidence=f"it holds {held}"
        )


_Rows = TypeVar("_Rows")


@final
class ChainSession:
    """Trees on a session that does not run trees: the first chain of a tree runs as a sequence and is cut off again.

    Logits rows of tokens that were not run are NaN.
    """

    def __init__(self, session: Session, *, name: str) -> None:
        self._session = session
        self._name = name
        self._length = 0  # without the tree
        self._tree: TokenTree | None = None

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """See ``TreeSession.extend_tree``."""
        rows = self._run(self._session.extend_all, token_ids, tree)
        order = _rows_of(len(token_ids), tree, all_positions=all_positions)
        result = np.full((len(order), rows.shape[1]), np.nan, dtype=np.float32)
        was_run = np.array(order) >= 0
        result[was_run] = rows[np.array(order)[was_run]]
        return result

    def extend_resident(
        self, session: ResidentSession, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False
    ) -> ResidentLogits:
        """As ``extend_tree``, with logits that stay on the device; ``session`` is the wrapped session."""
        rows = self._run(partial(session.extend_resident, all_positions=True), token_ids, tree)
        return rows.arranged(_rows_of(len(token_ids), tree, all_positions=all_positions))

    def _run(self, extend_all: Callable[[Sequence[int]], _Rows], token_ids: Sequence[int], tree: TokenTree) -> _Rows:
        """Run tokens and the first chain of a tree as a sequence."""
        tree.check(name=self._name)
        ahead = [tree.token_ids[node] for node in tree.first_chain()]
        if self._tree is not None:
            self.keep(())
        before = self._session.length
        try:
            rows = extend_all([*token_ids, *ahead])
        except BaseException:  # Ctrl-C may land after the pass
            self._session.truncate(min(before, self._session.length))
            raise
        self._length, self._tree = before + len(token_ids), tree
        return rows

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``; from the first token on that was not run, none is appended."""
        chain = check_kept(nodes, tree=self._tree, name=self._name).first_chain()
        common = next((at for at, node in enumerate(nodes) if chain[at] != node), len(nodes))
        self._tree = None
        self._session.truncate(self._length + common)


def _rows_of(count: int, tree: TokenTree, *, all_positions: bool) -> list[int]:
    """Return the sequence's logits row for each row of the tree; -1 where the token was not run."""
    order = list(range(0 if all_positions else count - 1, count))
    after = [-1] * len(tree.token_ids)
    for at, node in enumerate(tree.first_chain()):
        after[node] = count + at
    return order + after
