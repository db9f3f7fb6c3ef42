"""Rows of logits: arrays on the host, or positions in logits that stay on the device.

Callers that do not handle device rows use ``on_host``, which copies a row once.  ``LookAhead`` holds the rows of a
forward pass for tokens that are not part of the sequence yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.distribution import log_mass, unusable_logits
from structgen.models.protocol import ScoreQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.models.protocol import Logits, ResidentLogits
    from structgen.models.protocol.tree import TokenTree

__all__ = ["DeviceRow", "LogitsRow", "LogitsRows", "LookAhead", "log_probability", "on_host"]


@final
class LookAhead:
    """The logits after a sequence and after each token of a tree that may follow it.

    Attributes:
        start: how long the sequence was.
        tree: what may follow.
        told: the logits, ``1 + n`` rows: after the sequence, and after each token of the tree.

    Args:
        start: see above.
        tree: see above.
        told: see above.
        nodes: which tokens of the tree were run; None is all of them.
    """

    __slots__ = ("_children", "_was_run", "start", "told", "tree")

    def __init__(self, start: int, tree: TokenTree, told: LogitsRows, nodes: Sequence[int] | None = None) -> None:
        self.start = start
        self.tree = tree
        self.told = told
        self._was_run = range(len(tree.token_ids)) if nodes is None else frozenset(nodes)
        self._children: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            self._children.setdefault((parent, token), node)

    @property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + n, V]``; a row of a token that was not run is NaN."""
        return self.told.on_host()

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that ``tokens``, which follow the sequence, run through for as long as they stay in the tree."""
        nodes: list[int] = []
        node: int | None = -1
        for token in tokens:
            node = self._children.get((-1 if node is None else node, token))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def distribution(self, tokens: Sequence[int]) -> LogitsRow | None:
        """The logits after the sequence and ``tokens``; None where they leave the tree, or what was run of it."""
        nodes = self.path(tokens)
        if len(nodes) < len(tokens) or (nodes and nodes[-1] not in self._was_run):
            return None
        return self.told[1 + nodes[-1] if nodes else 0]


class DeviceRow(NamedTuple):
    """A row of logits that stay where the model made them.

    Attributes:
        logits: of its forward pass.
        place: which row.
    """

    logits: ResidentLogits
    place: int

    @property
    def shape(self) -> tuple[int]:
        """As of an array."""
        return (self.logits.shape[1],)


LogitsRow: TypeAlias = "Logits | DeviceRow"
"""The logits of one position, ``[V]``."""


def on_host(row: LogitsRow) -> Logits:
    """Return a row as an array; it is not written to."""
    return row.logits.host(row.place) if isinstance(row, DeviceRow) else row


def log_probability(row: LogitsRow, tokens: Sequence[int]) -> float:
    """Log of the probability that a row gives to some tokens together.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    if not isinstance(row, DeviceRow):
        return log_mass(row[list(tokens)]) - log_mass(row)
    questions = [ScoreQuery(row.place, token) for token in tokens]
    row.logits.foresee(questions)
    answers = [row.logits.ask(question) for question in questions]
    if not all(answer.is_finite for answer in answers):
        raise unusable_logits()
    return log_mass(np.array([answer.log_z for answer in answers]))


@final
class LogitsRows:
    """Some rows of a forward pass, one after the other.

    Args:
        logits: of the pass.
        first: which row is the first.
        count: how many there are; None is all that follow.
    """

    __slots__ = ("_count", "_first", "_logits")

    def __init__(self, logits: Logits | ResidentLogits, first: int = 0, count: int | None = None) -> None:
        self._logits = logits
        self._first = first
        self._count = logits.shape[0] - first if count is None else count

    @classmethod
    def of(cls, row: LogitsRow) -> LogitsRows:
        """Rows that are one."""
        return cls(row.logits, row.place, 1) if isinstance(row, DeviceRow) else cls(row[None])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LogitsRow]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> LogitsRow:
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        index += self._first
        logits = self._logits
        return logits[index] if isinstance(logits, np.ndarray) else DeviceRow(logits, index)

    def on_host(self) -> Logits:
        """Return them as an array, ``[n, V]``; it is not written to."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return logits[self._first : self._first + self._count]
        return np.stack([on_host(row) for row in self])

    def were_run(self) -> NDArray[np.bool_]:
        """Which of them were computed, ``[n]``."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return ~np.isnan(self.on_host()[:, 0])
        return np.array([logits.was_run(self._first + index) for index in range(self._count)])

    def resident_top(self, places: Sequence[int], count: int) -> tuple[NDArray[np.int64], Logits] | None:
        """Return the largest logits of some of the rows as ``ResidentLogits.top`` does; None where they are arrays."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return None
        return logits.top([self._first + place for place in places], count)
