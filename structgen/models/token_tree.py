"""Tokens that go on from the end of a sequence in several ways, and sessions that run only one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.errors import GenerationError
from structgen.models.extension import check_kept

if TYPE_CHECKING:
    from structgen.models.protocol import Logits, ResidentLogits, ResidentSession, Session

__all__ = ["ChainSession", "TokenTree"]

_Rows = TypeVar("_Rows")


class TokenTree(NamedTuple):
    """Continuations of one sequence that share their beginnings.

    Attributes:
        token_ids: the tokens, each behind the one that it follows.
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


@final
class ChainSession:
    """Trees on a session that knows none: of each, its first chain is run as a sequence, and cut off again.

    Rows of tokens that were not run are NaN.
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
        found = np.full((len(order), rows.shape[1]), np.nan, dtype=np.float32)
        was_run = np.array(order) >= 0
        found[was_run] = rows[np.array(order)[was_run]]
        return found

    def extend_resident(
        self, session: ResidentSession, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False
    ) -> ResidentLogits:
        """As ``extend_tree``, and leave the logits where they are; ``session`` is that of the trees."""
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
        except BaseException:  # Ctrl-C may land behind the pass
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
    """Which row of the sequence each row of the tree is, -1 where its token was not run."""
    order = list(range(0 if all_positions else count - 1, count))
    behind = [-1] * len(tree.token_ids)
    for at, node in enumerate(tree.first_chain()):
        behind[node] = count + at
    return order + behind
