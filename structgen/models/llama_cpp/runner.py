"""The forward passes of one model in llama.cpp, and its cache of keys and values.

All sequences share one cache.  A ``Place`` is what the cache holds of one sequence: cells for a prefix of its tokens,
under a number.  Forks share cells, since llama.cpp notes for each cell which sequences it belongs to.  The cache grows
by doubling.  At its limits the sequence that was used least recently loses its cells; its tokens run again when it is
next used.  So results do not depend on the size of the cache.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from structgen.errors import GenerationError
from structgen.models.llama_cpp.library import PASS_ROWS, Rows
from structgen.models.pass_times import FastestThreads

if TYPE_CHECKING:
    from structgen.models.llama_cpp.library import Library, Part
    from structgen.models.protocol import Logits
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Place", "Request", "RowAlone", "Runner"]

_LONG: Final = 64
"""From this many rows in a call on, llama.cpp's attention on a CPU takes another kernel, with other sums.  So a request
of fewer tokens never shares a call with this many rows: its logits must not depend on what else runs."""
_FIRST_CELLS, _FIRST_SEQUENCES = 2048, 16
_MAX_SEQUENCES: Final = 256
_MAX_CELLS: Final = 1 << 16
"""The cache grows to this many tokens of all sequences together, or to the model's context if that is longer."""
_NO_ROOM: Final = 1
_COMPANION: Final = 0
"""The sequence of the second row of a call that would have only one (see ``RowAlone``)."""


class RowAlone(Enum):
    """When a call of llama.cpp on a CPU may have a single row.

    For one row llama.cpp has kernels of their own.  That of attention sums in an order that depends on the number of
    threads, from 512 cells on; that of products of unquantised weights in another order than for several rows.
    Neither the number of threads nor draft tokens shall change logits, so elsewhere a copy of the row goes with it.
    """

    ALWAYS = "always"
    ONE_THREAD = "one thread"
    NEVER = "never"

    def holds(self, threads: int) -> bool:
        """Whether a call of this many threads may have a single row."""
        return self is RowAlone.ALWAYS or (self is RowAlone.ONE_THREAD and threads == 1)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Place:
    """The cells of a sequence in the cache.

    Attributes:
        numbers: of its sequences in llama.cpp: its own, then those of the branches of its tree after the first; none if
            the cache holds nothing of it.
        length: how many of its first tokens have cells.
        ends: the last node of each branch after the first.
        has_tree: whether there are cells beyond ``length``.
        used: when it was last used; larger is later.
    """

    numbers: list[int] = field(default_factory=list)
    length: int = 0
    ends: list[int] = field(default_factory=list)
    has_tree: bool = False
    used: int = 0


class Request(NamedTuple):
    """The part of one sequence in a pass.

    Attributes:
        place: of the sequence.
        tokens: all its tokens, the new ones included.
        new: how many of them are new: the last ones, at least one.
        all_positions: whether to return logits after each new token, or only after the last.
        tree: continuations of the tokens, or None.
    """

    place: Place
    tokens: Sequence[int]
    new: int
    all_positions: bool
    tree: TokenTree | None


class _CacheLost(Exception):  # not an error: the pass starts again
    """The content of the cache could not be moved to a larger one, and all places are empty."""


class Runner:
    """Runs passes and keeps the cache; for any number of threads, one at a time.

    Args:
        library: llama.cpp.
        model: address of the model; it is freed with the runner.
        name: of the model, for messages.
        width: of a logits row.
        context: the maximum length of a sequence.
        threads: the most of a pass.
        is_on_cpu: whether no GPU takes part.
        row_alone: when a call may have a single row.

    Raises:
        ModelError: there is not enough memory.
    """

    def __init__(  # noqa: PLR0913  facts of the model and the machine, by name
        self,
        library: Library,
        model: int,
        *,
        name: str,
        width: int,
        context: int,
        threads: int,
        is_on_cpu: bool,
        row_alone: RowAlone,
    ) -> None:
        self._lock = RLock()
        self._library = library
        self._model = model
        self._name = name
        self._width = width
        self._most_cells = max(context, _MAX_CELLS)
        self._row_alone = row_alone if is_on_cpu else RowAlone.ALWAYS
        self._threads = FastestThreads(threads, learns=self._row_alone is not RowAlone.ALWAYS)
        self._short_rows = _LONG - 1 if is_on_cpu else PASS_ROWS
        self._cells, self._sequences = min(_FIRST_CELLS, -(-context // 256) * 256), _FIRST_SEQUENCES
        self._free = list(range(_COMPANION + 1, self._sequences))[::-1]
        self._places: weakref.WeakSet[Place] = weakref.WeakSet()
        self._left: deque[list[int]] = deque()  # the numbers of places that nothing refers to any more
        self._clock = 0
        self._context, self._memory = 0, 0
        self._addresses = [0, model]  # of the context and the model
        weakref.finalize(self, _free, library, self._addresses)
        self._start()

    def new_place(self) -> Place:
        """Return a place with nothing in the cache; its cells are freed when nothing refers to it any more."""
        place = Place()
        self._places.add(place)
        weakref.finalize(place, self._left.append, place.numbers)
        return place

    def run(self, requests: Sequence[Request]) -> list[Logits]:
        """Run the requests, of different sequences, in as few passes as possible.

        Returns:
            For each request float32 ``[n, width]``: a row after each new token or after the last, then a row for each
            token of its tree.

        Raises:
            GenerationError: llama.cpp fails, or the cache has no room for these sequences together; then the cache
                holds nothing of them.
        """
        with self._lock:
            try:
                try:
                    return self._run_once(requests)
                except _CacheLost:
                    return self._run_once(requests)
            except BaseException:  # Ctrl-C included: which cells were written is not known
                self._library.llama_memory_seq_rm(self._memory, _COMPANION, -1, -1)
                for request in requests:
                    self.forget(request.place)
                raise

    def fork(self, place: Place) -> Place:
        """Return a place with the cells of another, without those of its tree."""
        with self._lock:
            copy = self.new_place()
            self._drop_tree(place)
            if place.length:
                self._take_number(copy, kept=[place])
                if place.length:  # it is 0 if the cache was lost on the way
                    self._library.llama_memory_seq_cp(self._memory, place.numbers[0], copy.numbers[0], 0, place.length)
                copy.length = place.length
            return copy

    def cut(self, place: Place, length: int) -> None:
        """Drop the cells from position ``length`` on, and those of the tree."""
        with self._lock:
            self._drop_tree(place)
            if length < place.length:
                self._remove_from(place, length)

    def keep(self, place: Place, tree: TokenTree, nodes: Sequence[int]) -> None:
        """Keep the cells of a path of the tree of the last pass, and drop the others of the tree."""
        with self._lock:
            if not place.has_tree:  # the place was evicted
                return
            start, end = place.length, place.length + len(nodes)
            if nodes and nodes[-1] not in tree.first_chain():
                branch = next(at for at, last in enumerate(place.ends, 1) if _is_above(tree, nodes[-1], last))
                own, other = place.numbers[0], place.numbers[branch]
                self._library.llama_memory_seq_rm(self._memory, own, start, -1)
                self._library.llama_memory_seq_cp(self._memory, other, own, start, end)
            place.length = end
            self._drop_tree(place)

    def forget(self, place: Place) -> None:
        """Drop all cells of a sequence."""
        with self._lock:
            while place.numbers:
                self._release(place.numbers.pop())
            place.length, place.ends, place.has_tree = 0, [], False

    def _run_once(self, requests: Sequence[Request]) -> list[Logits]:
        rows = Rows()
        busy = [request.place for request in requests]
        ranges = [self._add(request, rows, busy) for request in requests]
        logits = self._logits(rows, busy)
        for request in requests:
            request.place.length = len(request.tokens)
        return [
            _in_order(logits[first:last], request.tree) for (first, last), request in zip(ranges, requests, strict=True)
        ]

    def _add(self, request: Request, rows: Rows, busy: list[Place]) -> tuple[int, int]:
        """Add the rows of a request; return the range of its logits among those of the pass."""
        place, tokens, tree = request.place, request.tokens, request.tree
        self._clock += 1
        place.used = self._clock
        self._drop_tree(place)
        if not place.numbers:
            self._take_number(place, kept=busy)
        branches = [] if tree is None else self._branch(place, tree, busy)
        for other in place.numbers[1:]:
            self._library.llama_memory_seq_cp(self._memory, place.numbers[0], other, 0, place.length)
        first = rows.requested_count
        requested = len(tokens) - (request.new if request.all_positions else 1)
        if len(tokens) - place.length >= _LONG:
            rows.begin_long(len(tokens) - place.length)
        for position in range(place.length, len(tokens)):
            rows.add(tokens[position], position, place.numbers, requested=position >= requested)
        if tree is not None:
            place.has_tree = True
            depths = tree.depths()
            for node in _chain_first(tree):
                rows.add(int(tree.token_ids[node]), len(tokens) + depths[node], branches[node], requested=True)
        return first, rows.requested_count

    def _branch(self, place: Place, tree: TokenTree, busy: list[Place]) -> list[list[int]]:
        """Give each leaf of a tree a sequence, the first chain that of the place; return the sequences of each node."""
        chain_end = tree.first_chain()[-1]
        inner = set(tree.parents)
        ends = [node for node in range(len(tree.parents)) if node not in inner and node != chain_end]
        for _ in ends:
            self._take_number(place, kept=busy)
        place.ends = ends
        branches: list[list[int]] = [[] for _ in tree.parents]
        for number, end in zip(place.numbers, (chain_end, *ends), strict=True):
            node = end
            while node >= 0:
                branches[node].append(number)
                node = tree.parents[node]
        return branches

    def _logits(self, rows: Rows, busy: list[Place]) -> Logits:
        """Run all rows and return the logits of those that are requested."""
        logits = np.empty((rows.requested_count, self._width), dtype=np.float32)
        done = 0
        for start, stop in rows.calls(self._short_rows):
            threads = self._threads.of(stop - start)
            needs_companion = stop - start == 1 and not self._row_alone.holds(threads)
            part = rows.part(start, stop, companion=_COMPANION if needs_companion else None)
            began = perf_counter()
            while (status := self._decode(part, threads)) == _NO_ROOM:
                self._make_room(busy)
            if needs_companion:
                self._library.llama_memory_seq_rm(self._memory, _COMPANION, -1, -1)
            if status:
                raise GenerationError(
                    f"model {self._name!r}",
                    "llama.cpp failed in a forward pass",
                    evidence=self._library.last_errors() or f"status {status}",
                    remedy="shorten the prompt, or load the model with runtime='torch'",
                )
            self._threads.note(stop - start, threads, perf_counter() - began)
            for row in part.requested_rows:
                address = self._library.llama_get_logits_ith(self._context, row)
                ctypes.memmove(logits[done].ctypes.data, address, logits.itemsize * self._width)
                done += 1
        return logits

    def _decode(self, part: Part, threads: int) -> int:
        """Run rows and return llama.cpp's status; making room may have made another context."""
        self._library.llama_set_n_threads(self._context, threads, threads)
        return int(self._library.llama_decode(self._context, part.batch))

    def _start(self) -> None:
        """Make a context of the present sizes."""
        self._context = self._library.start_context(
            self._model, cells=self._cells, rows=PASS_ROWS, sequences=self._sequences
        )
        self._addresses[0] = self._context
        self._memory = self._library.llama_get_memory(self._context)

    def _grow(self, *, cells: int, sequences: int) -> None:
        """Move the content of the cache to a larger one.

        Raises:
            _CacheLost: llama.cpp cannot move it.
        """
        state = (ctypes.c_uint8 * self._library.llama_state_get_size(self._context))()
        written = self._library.llama_state_get_data(self._context, state, len(state))
        self._addresses[0] = 0
        self._library.llama_free(self._context)
        self._free[:0] = range(self._sequences, sequences)[::-1]
        self._cells, self._sequences = cells, sequences
        self._start()
        if not written or self._library.llama_state_set_data(self._context, state, written) != written:
            for place in list(self._places):
                self.forget(place)
            raise _CacheLost

    def _take_number(self, place: Place, *, kept: Iterable[Place]) -> None:
        """Give a place one more sequence; ``kept`` are not evicted for it."""
        self._collect()
        if not self._free and self._sequences < _MAX_SEQUENCES:
            self._grow(cells=self._cells, sequences=2 * self._sequences)
        if not self._free:
            self._evict([*kept, place])
        place.numbers.append(self._free.pop())

    def _make_room(self, kept: Iterable[Place]) -> None:
        """Make room for the cells of a pass; ``kept`` are not evicted for it."""
        if self._collect():
            return
        if self._cells < self._most_cells:
            self._grow(cells=min(2 * self._cells, self._most_cells), sequences=self._sequences)
        else:
            self._evict(kept)

    def _evict(self, kept: Iterable[Place]) -> None:
        """Drop the cells of the sequence that was used least recently.

        Raises:
            GenerationError: all sequences that have cells are kept.
        """
        held = {place for place in self._places if place.numbers}.difference(kept)
        if not held:
            raise GenerationError(
                f"model {self._name!r}",
                "the sequences of one pass do not fit the cache of llama.cpp",
                evidence=f"it holds {self._cells} tokens of {self._sequences} sequences",
                remedy="run fewer sequences at a time, or smaller draft trees",
            )
        self.forget(min(held, key=lambda place: place.used))

    def _collect(self) -> bool:
        """Free the cells of places that nothing refers to any more; return whether there were any."""
        found = False
        while self._left:
            for number in self._left.popleft():
                self._release(number)
                found = True
        return found

    def _drop_tree(self, place: Place) -> None:
        while len(place.numbers) > 1:
            self._release(place.numbers.pop())
        place.ends = []
        if place.has_tree:
            place.has_tree = False
            self._remove_from(place, place.length)

    def _remove_from(self, place: Place, length: int) -> None:
        """Drop the cells of a sequence from a position on."""
        if length and self._library.llama_memory_seq_rm(self._memory, place.numbers[0], length, -1):
            place.length = length
        else:  # nothing is left, or a recurrent state, which cannot be cut
            self.forget(place)

    def _release(self, number: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, number, -1, -1)
        self._free.append(number)


def _free(library: Library, addresses: list[int]) -> None:
    """Free a context and a model."""
    context, model = addresses
    if context:
        library.llama_free(context)
    library.llama_model_free(model)


def _chain_first(tree: TokenTree) -> list[int]:
    """Return the nodes in the order of their rows: the first chain, then the others.

    If a prefix of the first chain is kept, its cells have no gaps, and later sums the order that they have without
    draft tokens.
    """
    chain = tree.first_chain()
    others = set(range(len(tree.parents))).difference(chain)
    return [*chain, *sorted(others)]


def _in_order(logits: Logits, tree: TokenTree | None) -> Logits:
    """Return the rows of a request with those of its tree in the order of the nodes."""
    if tree is None:
        return logits
    before = len(logits) - len(tree.parents)
    order = np.array(_chain_first(tree), dtype=np.intp)
    ordered = logits.copy()
    ordered[before + order] = logits[before:]
    return ordered


def _is_above(tree: TokenTree, node: int, end: int) -> bool:
    """Whether a node is ``end`` or one of its ancestors."""
    while end > node:  # parents precede their children
        end = tree.parents[end]
    return end == node
