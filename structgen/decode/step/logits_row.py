"""Rows of logits: arrays on the host, or rows of logits that stay on the device.

Callers that do not handle device rows call ``on_host``, which copies a row once.  ``LookAhead`` holds the logits of a
forward pass for draft tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.distribution import log_mass, unusable_logits
from structgen.errors import GenerationError
from structgen.models.protocol import ScoreQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.models.protocol import Logits, ResidentLogits
    from structgen.models.protocol.tree import TokenTree

__all__ = ["DeviceRow", "LogitsRow", "LogitsRows", "LookAhead", "check_width", "log_probability", "on_host"]


@final
class LookAhead:
    """The logits after a sequence and after each token of a draft tree.

    Attributes:
        start: the length of the sequence.
        tree: the draft tokens; only ``nodes`` of them were run, None for all.
        logits: ``1 + n`` rows: after the sequence, and after each token of the tree.
    """

    __slots__ = ("_children", "_was_run", "logits", "start", "tree")

    def __init__(self, start: int, tree: TokenTree, logits: LogitsRows, nodes: Sequence[int] | None = None) -> None:
        self.start = start
        self.tree = tree
        self.logits = logits
        self._was_run = range(len(tree.token_ids)) if nodes is None else frozenset(nodes)
        self._children: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            self._children.setdefault((parent, token), node)

    @property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + n, V]``; the rows of tokens that were not run are NaN."""
        return self.logits.on_host()

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes on the path of ``tokens`` from the root, up to the first token that is not in the tree."""
        nodes: list[int] = []
        node: int | None = -1
        for token in tokens:
            node = self._children.get((-1 if node is None else node, token))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def row_after(self, tokens: Sequence[int]) -> LogitsRow | None:
        """The logits after the sequence and ``tokens``; None if the tree has no such path, or it was not run."""
        nodes = self.path(tokens)
        if len(nodes) < len(tokens) or (nodes and nodes[-1] not in self._was_run):
            return None
        return self.logits[1 + nodes[-1] if nodes else 0]


class DeviceRow(NamedTuple):
    """A row of on-device logits.

    Attributes:
        logits: the logits of a forward pass.
        position: the index of the row.
    """

    logits: ResidentLogits
    position: int

    @property
    def shape(self) -> tuple[int]:
        """The shape of the row, ``[V]``."""
        return (self.logits.shape[1],)


LogitsRow: TypeAlias = "Logits | DeviceRow"
"""The logits of one position, ``[V]``."""


def on_host(row: LogitsRow) -> Logits:
    """Return a row as an array; read only."""
    return row.logits.host(row.position) if isinstance(row, DeviceRow) else row


def check_width(row: LogitsRow, size: int, model: str) -> None:
    """Check that a row of the model of this name has a logit for each of ``size`` tokens.

    Raises:
        GenerationError: it has another number of logits.
    """
    if row.shape != (size,):
        raise GenerationError(
            f"model {model!r}",
            f"it returned {row.shape[-1]} logits",
            evidence=f"its vocabulary has {size} tokens",
            remedy="give the vocabulary the width of the model's head (size=...)",
        )


def log_probability(row: LogitsRow, tokens: Sequence[int]) -> float:
    """Log of the total probability of some tokens in a row.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    if not isinstance(row, DeviceRow):
        return log_mass(row[list(tokens)]) - log_mass(row)
    queries = [ScoreQuery(row.position, token) for token in tokens]
    row.logits.prefetch(queries)
    answers = [row.logits.ask(query) for query in queries]
    if not all(answer.is_finite for answer in answers):
        raise unusable_logits()
    return log_mass(np.array([answer.log_z for answer in answers]))


@final
class LogitsRows:
    """Consecutive rows of the logits of a forward pass: ``count`` from ``first`` on, None for all."""

    __slots__ = ("_count", "_first", "_logits")

    def __init__(self, logits: Logits | ResidentLogits, first: int = 0, count: int | None = None) -> None:
        self._logits = logits
        self._first = first
        self._count = logits.shape[0] - first if count is None else count

    @classmethod
    def of(cls, row: LogitsRow) -> LogitsRows:
        """A single row."""
        return cls(row.logits, row.position, 1) if isinstance(row, DeviceRow) else cls(row[None])

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
        """Return the rows as an array, ``[n, V]``; read only."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return logits[self._first : self._first + self._count]
        return np.stack([on_host(row) for row in self])

    def were_run(self) -> NDArray[np.bool_]:
        """Which rows were computed, ``[n]``."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return ~np.isnan(self.on_host()[:, 0])
        return np.array([logits.was_run(self._first + index) for index in range(self._count)])

    def resident_top(self, rows: Sequence[int], count: int) -> tuple[NDArray[np.int64], Logits] | None:
        """Return the ``count`` largest logits of some rows, as ``ResidentLogits.top``; None for arrays on the host."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return None
        return logits.top([self._first + row for row in rows], count)
