"""The rows of passes that several sequences share: nobody waits long for the rows of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from structgen.engine import Vocabulary
from structgen.models import Batch, HashModel
from structgen.models.batch_requests import Request
from structgen.models.pass_times import rows_within, time_of
from structgen.models.protocol import Extension, Logits
from structgen.models.protocol.tree import TokenTree
from structgen.models.schedule import Times, divided

pytestmark = pytest.mark.timeout(120)

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
TIMES = ((2, 1.2), (8, 1.8), (16, 2.6))
TREE = TokenTree([1, 2, 3, 4], [-1, 0, 1, 2])


class Counted(HashModel):
    """A model whose rows cost something, and that records the rows of each sequence of a pass."""

    pass_times = TIMES

    def __init__(self) -> None:
        super().__init__(VOCABULARY, max_context=400)
        self.passes: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def logits(self, state: int, matched: int) -> Logits:
        """As soon as the gate is open."""
        self.entered.set()
        assert self.gate.wait(60)
        return super().logits(state, matched)

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """As without the record."""
        trees = [0 if each.tree is None else len(each.tree.token_ids) for each in extensions]
        self.passes.append([len(each.token_ids) + tree for each, tree in zip(extensions, trees, strict=True)])
        return super().extend_many(extensions)


def bound(sequences: int) -> int:
    """Rows of a pass that takes twice as long as with one row of each sequence."""
    return rows_within(TIMES, 2 * time_of(TIMES, sequences))


def in_workers(batch: Batch, programs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each program in a worker of its own."""
    found: list[Any] = [None] * len(programs)
    workers = [batch.worker() for _ in programs]

    def run(index: int) -> None:
        with workers[index]:
            found[index] = programs[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def together(batch: Batch, model: Counted, programs: Sequence[Callable[[Any], Any]]) -> list[Any]:
    """Run each program with a session, in a worker of its own; the first pass ends when all of them have asked."""
    model.gate.clear()
    sessions = [batch.start() for _ in programs]

    def opened() -> None:
        while len(batch._waiting) < len(programs):
            time.sleep(0.001)
        model.gate.set()

    def run(index: int) -> Any:
        if index:
            model.entered.wait(60)
        return programs[index](sessions[index])

    threading.Thread(target=opened, daemon=True).start()
    return in_workers(batch, [lambda index=index: run(index) for index in range(len(programs))])


def forced(session: Any, seed: int) -> list[float]:
    """One token, then pieces of text that is forced, and now and then a tree; what the model answers."""
    heard = [float(session.extend([seed])[7])]
    for turn in range(3):
        heard.append(float(session.extend([seed + turn] * (5 + (7 * seed + turn) % 20))[7]))
        heard += session.extend_all([turn, seed, turn])[:, 7].tolist()
        heard += session.extend_tree([seed, turn, 3], TREE)[:, 7].tolist()
        session.keep([0, 1])
    return heard


def test_sixteen_sequences_divide_the_rows_of_a_pass() -> None:
    """However much text is forced, a pass takes no more than twice its ordinary time, and all hear what they would."""

    def text(session: Any, seed: int) -> list[float]:
        first = [] if seed else [float(session.extend([1])[7])]  # the others wait meanwhile
        return [*first, float(session.extend([seed] * 20)[7])]

    model = Counted()
    with Batch(model, patience=50.0) as batch:
        found = together(batch, model, [lambda session, seed=seed: text(session, seed) for seed in range(16)])
    assert found == [text(HashModel(VOCABULARY).start(), seed) for seed in range(16)]
    assert bound(16) == 42
    assert [len(model.passes[0]), sum(model.passes[0]), *sorted(set(model.passes[0]))] == [16, 42, 2, 3]
    assert all(sum(rows) <= bound(len(rows)) for rows in model.passes)
    assert sum(map(sum, model.passes)) <= 16 * 20


def test_sequences_with_trees_hear_what_they_would_hear_alone() -> None:
    """Trees stay whole, in whatever pieces the tokens before them come."""
    model = Counted()
    with Batch(model, patience=50.0) as batch:
        found = together(batch, model, [lambda session, seed=seed: forced(session, seed) for seed in range(16)])
    assert found == [forced(HashModel(VOCABULARY).start(), seed) for seed in range(16)]
    assert max(map(len, model.passes)) > 2
    assert all(sum(rows) <= bound(16) for rows in model.passes)


def test_without_patience_requests_stay_whole() -> None:
    """Nobody waits, so passes are as few as they can be."""
    model = Counted()
    with Batch(model) as batch:
        in_workers(batch, [lambda: batch.start().extend([1] * 20) for _ in range(16)])
    assert model.passes == [[20] * 16]


def test_a_lone_sequence_has_all_rows() -> None:
    """With patience, too; and it knows that it is alone, also after others have left."""
    model = Counted()
    with Batch(model, patience=50.0) as batch:
        together(batch, model, [lambda session, seed=seed: forced(session, seed) for seed in range(16)])

        def lone() -> list[int]:
            session: Any = batch.start()
            session.extend([1])
            rows = []
            for count in (30, 50):
                before = session.forwards
                session.extend([2] * count)
                rows.append(session.forwards - before)
            return rows

        assert in_workers(batch, [lone]) == [[1, 1]]
        assert batch.company == (0, 0, 512)


def request(order: int, tokens: int, tree: TokenTree | None = None, arrived: int = 9) -> Request:
    """A request of a session of its own."""
    session: Any = HashModel(VOCABULARY).start()
    session.inner = session
    made = Request(
        session,
        Extension(session, [1] * tokens, tree=tree, all_positions=False),
        order,
        is_resident=False,
        is_valid=True,
    )
    made.arrived = arrived
    return made


def test_prompts_fill_a_pass_to_some_times_that_of_all_workers() -> None:
    """Beside two sequences that write, as long as no passes with and without prompts were measured."""

    def writer(session: Any) -> None:
        for token in range(6):
            session.extend([token])

    model = Counted()
    with Batch(model, patience=50.0) as batch:
        prompt = list(range(100))
        together(batch, model, [writer, writer, *[lambda session: session.extend(prompt)] * 2])
    most = rows_within(TIMES, 2.4 * time_of(TIMES, 4))
    first = next(rows for rows in model.passes if rows[:2] == [1, 1])
    assert sum(first) == most > 20


def test_rows_are_divided_fairly() -> None:
    """Who needs little has it; the others have the same, but for a row; a tree waits for one pass."""
    requests = [request(order, tokens) for order, tokens in enumerate([1, 9, 2, 9, 9])]
    assert list(divided(requests, 20, 8).values()) == [1, 6, 2, 6, 5]
    assert list(divided(requests, 30, 8).values()) == [1, 9, 2, 9, 9]
    assert list(divided(requests, 3, 8).values()) == [1, 1, 1]
    with_tree = [request(0, 1), request(1, 1, TREE), request(2, 6, TREE), request(3, 5)]
    assert [pieces.get(each, 0) for pieces in [divided(with_tree, 12, 8)] for each in with_tree] == [1, 0, 4, 4]
    with_tree[1].arrived = 8
    assert [pieces.get(each, 0) for pieces in [divided(with_tree, 12, 8)] for each in with_tree] == [1, 1, 3, 3]


def test_company_follows_the_passes() -> None:
    """Who waits, or means of the last passes, of no more sequences than there are workers."""
    times = Times()
    assert times.shared([], waiting=0, workers=16) == 0
    assert times.shared([3], waiting=1, workers=16) == 0
    assert times.shared([3], waiting=9, workers=16) == 8
    for _ in range(30):
        assert times.shared([2, 4] * 8, waiting=16, workers=16) == 15
    assert times.rows == pytest.approx(3, abs=0.01)
    assert times.shared([2, 4], waiting=2, workers=16) > 8
    assert times.shared([2, 4], waiting=2, workers=2) == 1
    assert times.shared([2], waiting=1, workers=1) == 0


def test_company_are_those_who_will_ask() -> None:
    """New workers, and those of the last pass; nobody who missed it."""
    with Batch(Counted(), patience=0.0) as batch:
        workers = [batch.worker() for _ in range(3)]
        assert batch.company.others == 2
        with workers[0]:
            batch.start().extend([1])
            assert batch.company.others == 2
        workers[1].leave()
        assert batch.company.others == 0
        workers[2].leave()
