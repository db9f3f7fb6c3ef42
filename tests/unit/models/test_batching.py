"""The rendezvous of programs: their answers are those of a separate model, and none waits forever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from function_model import FunctionModel
from tree_session_machine import path, random_tree

from structgen.decode import generate
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.models import Batch, HashModel, LanguageModel, PackedModel, Session
from structgen.models.batching import Worker
from structgen.models.protocol import Extension, Logits, ResidentSession, TreeSession
from structgen.models.protocol.tree import TokenTree
from structgen.models.schedule import Times
from structgen.models.toy.hash import HashSession

pytestmark = pytest.mark.timeout(120)

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b"ab", b"true"], eos=[0])
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


class Recorder(HashModel):
    """A model that records which sessions ran together: for each pass the lengths before it and the added tokens."""

    def __init__(self, fault: Callable[[int], BaseException | None] = lambda passes: None) -> None:
        super().__init__(VOCABULARY, max_context=400)
        self.passes: list[list[tuple[int, tuple[int, ...]]]] = []
        self.fault = fault

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        self.passes.append([(each.session.length, tuple(each.token_ids)) for each in extensions])
        error = self.fault(len(self.passes))
        if error is not None:
            extensions[0].session.extend(extensions[0].token_ids)  # what a half-finished pass leaves
            raise error
        return super().extend_many(extensions)


class Guarded(HashModel):
    """A model that fails when two threads are in it."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, max_context=400)
        self._inside = threading.Lock()

    def logits(self, state: int, matched: int) -> Logits:
        assert self._inside.acquire(blocking=False)
        try:
            return super().logits(state, matched)
        finally:
            self._inside.release()


class Unpacked:
    """The same answers from a model that runs one sequence at a time."""

    def __init__(self) -> None:
        self._model = Guarded()
        self.name, self.vocabulary, self.max_context = "unpacked", VOCABULARY, 400
        self.encode_prompt = self._model.encode_prompt
        self.start = self._model.start


def in_threads(programs: Sequence[Callable[[], object]], workers: Sequence[Worker]) -> list[Any]:
    """Run each program in a worker's thread; return results or exceptions."""
    outcomes: list[Any] = [None] * len(programs)

    def run(index: int) -> None:
        try:
            with workers[index]:
                outcomes[index] = programs[index]()
        except BaseException as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a program waits for ever"
    return outcomes


def run_together(batch: Batch, programs: Sequence[Callable[[], object]]) -> list[Any]:
    """Run each program in its own worker; all workers are made first."""
    return in_threads(programs, [batch.worker() for _ in programs])


def wander(model: LanguageModel, seed: int, *, turns: int = 30) -> list[float]:
    """Extend, cut, fork and close sessions at random; return the model's answers. Some end early, some with errors."""
    random = np.random.default_rng(seed)
    sessions: list[Session] = [model.start()]
    heard = []
    for _ in range(int(random.integers(1, turns))):
        at = int(random.integers(len(sessions)))
        session = sessions[at]
        ids = [int(token) for token in random.integers(0, 260, size=random.choice([1, 1, 1, 3, 60, 130]))]
        match int(random.integers(12)):
            case 0:
                session.truncate(int(random.integers(session.length + 1)))
            case 1:
                sessions.append(session.fork())
            case 2:
                session.close()
            case 3:
                heard.append(float(session.extend_all(ids[:60])[:, 7].sum()))
            case 4:
                with pytest.raises(GenerationError, match="no token has the id 999"):
                    session.extend([999])
            case 5 if random.integers(8) == 0:
                raise ZeroDivisionError(f"program {seed}")
            case _:
                try:
                    heard.append(float(session.extend(ids)[7]))
                except GenerationError as error:
                    assert "longer than the context" in str(error)  # noqa: PT017  it happens only now and then
                    session.truncate(0)
                heard.append(float(session.length))
    return heard


def look_ahead(model: LanguageModel, seed: int) -> list[float]:
    """Run trees, keep some of their tokens, and do other things at random; return the model's answers."""
    random = np.random.default_rng(seed)
    session: Any = model.start()
    heard = [float(session.extend([1 + seed])[7])]
    for turn in range(int(random.integers(1, 20))):
        tree = random_tree(random, int(random.integers(1, 9)), tokens=260)
        match int(random.integers(6)):
            case 0:
                session = session.fork()
            case 1:
                with pytest.raises(GenerationError, match="token 0 has the parent 0"):
                    session.extend_tree([2], TokenTree([1], [0]))
            case 2:
                heard += session.extend_all([turn, 3])[:, 7].tolist()
            case _:
                heard += session.extend_tree([turn, 4], tree, all_positions=turn % 2 == 0)[:, 7].tolist()
                if random.integers(4):
                    session.keep(path(tree, int(random.integers(-1, len(tree.parents)))))
        heard.append(float(session.length))
    return heard


def alone(program: Callable[[], object]) -> Any:
    """The results of a program alone."""
    try:
        return program()
    except ZeroDivisionError as error:
        return error


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("packed", "patience"), [(True, None), (True, 0), (True, 0.5), (False, None), (False, 0.5)])
def test_programs_hear_what_they_would_hear_alone(seed: int, packed: bool, patience: float | None) -> None:
    """This holds for all operations, for any number of threads, with programs that fail or end early."""
    count = [1, 2, 3, 5, 8, 13, 21, 34][seed % 8]
    model = Recorder() if packed else Unpacked()
    expected = [alone(lambda i=i: wander(HashModel(VOCABULARY, max_context=400), 100 * seed + i)) for i in range(count)]
    with Batch(model, pass_tokens=[1, 40, 512][seed % 3], patience=patience) as batch:
        found = run_together(batch, [lambda i=i: wander(batch, 100 * seed + i) for i in range(count)])
    for one, other in zip(found, expected, strict=True):
        assert repr(one) == repr(other) if isinstance(other, Exception) else one == other


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("packed", [True, False])
def test_trees_are_looked_at_together(seed: int, packed: bool) -> None:
    """Each worker gets the answers for its own tree, also after passes that failed half-way."""
    faulty = Recorder(lambda passes: RuntimeError("too many") if passes % 3 == 2 else None)
    model = faulty if packed else Unpacked()
    with Batch(model, pass_tokens=[1, 20, 512][seed % 3]) as batch:
        found = run_together(batch, [lambda i=i: look_ahead(batch, 10 * seed + i) for i in range(6)])
    assert found == [look_ahead(HashModel(VOCABULARY, max_context=400), 10 * seed + i) for i in range(6)]
    assert (len(faulty.passes) > 3) == (packed and seed % 3 > 0)


def test_the_tokens_of_trees_count() -> None:
    """A pass with trees takes fewer requests."""
    model = Recorder()
    tree = TokenTree([1, 2, 3, 4], [-1, -1, 0, 1])

    def looks(count: int) -> Logits:
        return batch.start().extend_tree([count], tree) if count > 1 else batch.start().extend([count])

    with Batch(model, pass_tokens=11) as batch:
        rows = run_together(batch, [lambda count=count: looks(count) for count in (1, 2, 3, 4, 1)])
    assert [[ids for _, ids in each] for each in model.passes] == [[(1,), (2,), (3,)], [(4,), (1,)]]
    assert [each.size // VOCABULARY.size for each in rows] == [1, 5, 5, 5, 1]


def test_trees_of_models_that_know_none_are_refused() -> None:
    """A session of a batch always has the methods, and raises if its model has no trees."""
    model = FunctionModel(VOCABULARY, lambda text: {b"ab": 0.5})
    with Batch(model) as batch:
        session = batch.start()
        assert isinstance(session, TreeSession)
        assert not session.can_branch
        assert batch.start().extend([3]).shape == (VOCABULARY.size,)
        with batch.worker():
            for refused in (lambda: session.extend_tree([1], TokenTree([1], [-1])), lambda: session.keep([])):
                with pytest.raises(GenerationError, match="its sessions do not run trees"):
                    refused()
        assert session.length == 0
    with Batch(HashModel(VOCABULARY)) as other:
        assert other.start().can_branch


def test_a_model_that_packs_sequences_need_not_know_trees() -> None:
    """It is not given any, so that it cannot ignore them."""

    class Packing(FunctionModel):
        def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
            return [each.session.extend(each.token_ids) for each in extensions]

    tree = TokenTree([1], [-1])
    with Batch(Packing(VOCABULARY, lambda text: {b"ab": 0.5})) as batch:
        found = run_together(batch, [lambda: batch.start().extend_tree([1], tree) for _ in range(3)])
    assert all("its sessions do not run trees" in str(error) for error in found)


def test_what_runs_together_does_not_depend_on_the_threads() -> None:
    """Ten runs of the same programs make the same passes with the same sequences in the same order."""

    def passes() -> list[Any]:
        model = Recorder()
        with Batch(model) as batch:
            run_together(batch, [lambda i=i: wander(batch, i) for i in range(7)])
        return model.passes

    first = passes()
    assert max(map(len, first)) == 7
    assert all(passes() == first for _ in range(9))


@pytest.mark.exhaustive
def test_generations_are_those_of_one_program_after_the_other() -> None:
    """``generate`` in eight workers writes the output of a single run, token by token."""
    constraint = compile(json_schema(SCHEMA), VOCABULARY)
    model = Recorder()

    def answer(to: LanguageModel, index: int) -> tuple[int, ...]:
        return generate(to, "abc"[: 1 + index % 3] * index, constraint, max_tokens=40 + index).tokens

    expected = [answer(HashModel(VOCABULARY, max_context=400), index) for index in range(8)]
    with Batch(model) as batch:
        assert isinstance(batch, LanguageModel)
        assert isinstance(batch.start(), Session)
        assert run_together(batch, [lambda i=i: answer(batch, i) for i in range(8)]) == expected
    assert max(map(len, model.passes)) == 8


@pytest.mark.parametrize("seed", range(4))
def test_logits_on_a_device_stay_there(seed: int) -> None:
    """Answers are those of the session alone, also where others of the same pass copy their logits."""
    models = pytest.importorskip("device_hash_model", reason="torch is not installed")

    def answers(model: LanguageModel, number: int) -> list[float]:
        random = np.random.default_rng([seed, number])
        session, heard = model.start(), []
        assert isinstance(session, ResidentSession)
        assert session.is_resident
        for _ in range(6):
            ids = random.integers(0, 260, size=random.choice([1, 3, 90])).tolist()
            tree = random_tree(random, int(random.integers(1, 6)), tokens=260) if random.integers(2) else None
            every = bool(random.integers(2))
            if random.integers(3):
                rows = session.extend_resident(ids, all_positions=every, tree=tree)
                heard += [float(rows.host(row)[7]) for row in range(rows.shape[0])]
            elif tree is not None:
                heard += session.extend_tree(ids, tree, all_positions=every)[:, 7].tolist()
            else:
                heard += (session.extend_all(ids) if every else session.extend(ids)[None])[:, 7].tolist()
        return heard

    model = models.ResidentHashModel(VOCABULARY)
    with Batch(model) as batch:
        together = run_together(batch, [partial(answers, batch, number) for number in range(4)])
    assert together == [answers(models.ResidentHashModel(VOCABULARY), number) for number in range(4)]
    assert model.passes > 0


def test_generations_copy_no_logits_from_a_device() -> None:
    models = pytest.importorskip("device_hash_model", reason="torch is not installed")
    constraint = compile(json_schema(SCHEMA), VOCABULARY)

    def program(model: LanguageModel, prompt: str) -> str:
        return generate(model, prompt, constraint, max_tokens=60, drafter=None, seed=2).text

    prompts = ["a", "b" * 90, "c"]
    model = models.ResidentHashModel(VOCABULARY)
    with Batch(model) as batch:
        together = run_together(batch, [partial(program, batch, prompt) for prompt in prompts])
    assert together == [program(HashModel(VOCABULARY), prompt) for prompt in prompts]
    assert model.passes > 0
    assert model.residence.copied_rows == 0


def test_a_pass_takes_as_many_requests_as_the_bound_allows() -> None:
    """Requests come in the workers' order, a larger one alone; those that had no room come first the next time."""
    model = Recorder()
    assert isinstance(model, PackedModel)
    sizes = [3, 4, 3, 1, 30, 2, 2, 6]
    with Batch(model, pass_tokens=10) as batch:
        run_together(batch, [lambda size=size: batch.start().extend([1] * size) for size in sizes])
    assert [[len(ids) for _, ids in each] for each in model.passes] == [[3, 4, 3], [1, 2, 2]]  # [30] and [6] ran alone
    with pytest.raises(ValueError, match="pass_tokens must be at least 1"):
        Batch(model, pass_tokens=0)


def test_long_prompts_are_run_in_pieces_beside_others() -> None:
    """A pass has as much of a prompt as the others leave room for, and its answer is that of the whole."""
    model = Recorder()
    prompt = [token % 200 for token in range(150)]

    def writer() -> None:
        session = batch.start()
        for token in range(6):
            session.extend([token])

    with Batch(model, pass_tokens=60) as batch:
        *_, row, rows = run_together(
            batch, [writer, writer, lambda: batch.start().extend(prompt), lambda: batch.start().extend_all(prompt)]
        )
    assert [[len(ids) for _, ids in each] for each in model.passes[:4]] == [[1, 1, 58]] * 2 + [
        [1, 1, 34, 24],
        [1, 1, 58],
    ]
    assert [before for before, _ in model.passes[3]] == [3, 3, 24]  # the shorter half of the second prompt was run
    alone = HashModel(VOCABULARY)
    assert np.array_equal(row, alone.start().extend(prompt))
    assert np.array_equal(rows, alone.start().extend_all(prompt))


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("prefix_tokens", [2048, 250, 0])
def test_prompts_that_begin_alike_are_run_once(
    together: bool, prefix_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they wait at the same time or come one after the other; trees and later tokens do not count."""
    start = [7 * token % 200 for token in range(200)]
    tree = TokenTree([1, 2], [-1, 0])
    prompts = [[*start, *(index + token for token in range(20))] for index in range(5)]
    run = []
    append = HashSession._append

    def counting(session: HashSession, token_ids: Sequence[int]) -> int:
        run.append(len(token_ids))
        return append(session, token_ids)

    def program(prompt: list[int], model: LanguageModel) -> list[float]:
        session: Any = model.start()
        found = session.extend_tree(prompt, tree)[:, 7].tolist()
        session.keep([0])
        found.append(float(session.extend([3])[7]))
        session.truncate(100)
        found.append(float(session.extend([4])[7]))
        session.close()
        return found

    expected = [program(prompt, HashModel(VOCABULARY)) for prompt in prompts]
    monkeypatch.setattr(HashSession, "_append", counting)
    with Batch(HashModel(VOCABULARY), prefix_tokens=prefix_tokens, pass_tokens=90) as batch:
        if together:
            found = run_together(batch, [lambda prompt=prompt: program(prompt, batch) for prompt in prompts])
        else:
            found = [run_together(batch, [lambda prompt=prompt: program(prompt, batch)])[0] for prompt in prompts]
    assert found == expected
    once = 200 + 5 * 20 + 2 * 5
    assert sum(run) == (once if prefix_tokens else once + 4 * 200)


def test_prompts_that_the_model_refuses_leave_nothing() -> None:
    """The error names all tokens, as alone."""
    model = HashModel(VOCABULARY, max_context=100)
    long, odd = [1] * 101, [2] * 80 + [999]
    with Batch(model, pass_tokens=32) as batch:
        session = batch.start()
        found = run_together(batch, [lambda: session.extend(long), lambda: batch.start().extend(odd)])
        for error, ids in zip(found, (long, odd), strict=True):
            with pytest.raises(GenerationError) as alone:
                model.start().extend(ids)
            assert str(error) == str(alone.value)
        assert session.length == 0


def test_with_patience_the_model_does_not_wait_for_who_is_away() -> None:
    """A worker that has asked once and does something else holds up the others for one pass only."""
    done, heard = threading.Event(), list[float]()

    def away(batch: Batch) -> bool:
        batch.start().extend([1])
        return done.wait(60)  # a worker that waits for another one deadlocks without patience

    def writer(batch: Batch) -> None:
        session = batch.start()
        heard.extend(float(session.extend([token])[7]) for token in range(20))
        done.set()

    with Batch(Recorder(), patience=0.5) as batch:
        never = batch.worker()  # has not asked yet, so that nobody waits for it
        assert run_together(batch, [lambda: away(batch), lambda: writer(batch)]) == [True, None]
        never.leave()
    session = HashModel(VOCABULARY).start()
    assert heard == [float(session.extend([token])[7]) for token in range(20)]


def test_with_patience_pieces_follow_the_times_of_passes() -> None:
    """What a token of a prompt adds is told apart from what the rows beside it take."""
    times = Times()
    assert times.room(2) is None
    for rows in (1, 8) * 15:
        without = 1 + 0.1 * (rows - 1)
        times.note(0.1 * without, prompt_tokens=0, without=without)
        times.note(0.1 * without + 0.002 * 40, prompt_tokens=40, without=without)
    assert times.room(2) == pytest.approx(2 * 0.1 / 0.002, abs=1)
    times.note(0.1, prompt_tokens=10)
    assert times.room(2) > 100  # type: ignore[operator]


def test_a_pass_that_fails_fails_only_who_is_at_fault() -> None:
    """Its requests are run one by one, from their old state."""
    model = Recorder(lambda passes: MemoryError("too many") if passes == 2 else None)
    ids = [[5], [999], [6, 7]]
    with Batch(model) as batch:
        first = run_together(batch, [lambda i=i: batch.start().extend(i) for i in ids])
        second = run_together(batch, [lambda i=i: batch.start().extend(i) for i in ([5], [5], [6, 7])])
    assert len(model.passes) == 2
    assert np.array_equal(first[0], HashModel(VOCABULARY).start().extend([5]))
    assert "no token has the id 999" in str(first[1])
    for row, wanted in zip(second, ([5], [5], [6, 7]), strict=True):
        assert np.array_equal(row, HashModel(VOCABULARY).start().extend(wanted))


@pytest.mark.parametrize("when", [1, 2, 5])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_belongs_to_the_thread_that_runs_the_pass(when: int, interruption: type[BaseException]) -> None:
    """Only that thread is interrupted and its session is unchanged; the others get their answers as usual."""
    model = Recorder(lambda passes: interruption() if passes == when else None)
    interrupted = []

    def program(index: int) -> list[float]:
        session, heard = batch.start(), []
        for turn in range(8):
            before = session.length
            try:
                heard.append(float(session.extend([1 + index] * (1 + turn % 2))[3]))
            except interruption:
                interrupted.append(index)
                assert session.length == before
                heard.append(float(session.extend([1 + index] * (1 + turn % 2))[3]))
        return heard

    with Batch(model) as batch:
        found = run_together(batch, [lambda i=i: program(i) for i in range(5)])
    assert len(interrupted) == 1
    batch = Batch(HashModel(VOCABULARY))
    assert found == [program(index) for index in range(5)]


def test_a_worker_that_is_interrupted_while_it_waits_leaves_no_trace() -> None:
    """Its request is withdrawn; the others go on when it leaves, or when it asks again."""
    batch = Batch(Recorder())
    waiting = threading.Event()
    workers = [batch.worker(), batch.worker()]
    wait = batch._changed.wait
    main = threading.get_ident()

    def interrupt_first(timeout: float | None = None) -> bool:
        if threading.get_ident() == main and not waiting.is_set():
            waiting.set()
            raise KeyboardInterrupt
        return wait(timeout)

    batch._changed.wait = interrupt_first  # type: ignore[method-assign]
    heard: list[Logits] = []

    def other() -> None:
        with workers[1]:
            session = batch.start()
            waiting.wait(30)
            heard.extend(session.extend([token]) for token in (4, 5))

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    with workers[0]:
        session = batch.start()
        with pytest.raises(KeyboardInterrupt):
            session.extend([1, 2])
        assert session.length == 0
        assert np.array_equal(session.extend([1, 2]), HashModel(VOCABULARY).start().extend([1, 2]))
    thread.join(30)
    assert not thread.is_alive()
    assert np.array_equal(heard[1], HashModel(VOCABULARY).start().extend([4, 5]))


def test_a_request_that_was_run_for_an_interrupted_worker_is_undone() -> None:
    """If another thread's pass cannot be stopped, its result is discarded."""
    running, go_on = threading.Event(), threading.Event()

    def fault(passes: int) -> None:
        running.set()
        assert go_on.wait(30)

    batch = Batch(Recorder(fault))
    workers = [batch.worker(), batch.worker()]
    wait = batch._changed.wait
    main = threading.get_ident()

    def interrupt_first(timeout: float | None = None) -> bool:
        if threading.get_ident() == main and not go_on.is_set():
            thread.start()  # it makes its request and runs both
            batch._changed.release()
            assert running.wait(30)
            batch._changed.acquire()
            go_on.set()
            raise KeyboardInterrupt
        return wait(timeout)

    batch._changed.wait = interrupt_first  # type: ignore[method-assign]

    def other() -> None:
        with workers[1]:
            batch.start().extend([9])

    thread = threading.Thread(target=other, daemon=True)
    with workers[0]:
        session = batch.start()
        reference = session.fork()
        with pytest.raises(KeyboardInterrupt):
            session.extend([1, 2])
        assert (session.length, reference.length) == (0, 0)
    thread.join(30)
    assert not thread.is_alive()
    with batch.worker():
        assert np.array_equal(session.extend([3]), HashModel(VOCABULARY).start().extend([3]))


def test_closing_ends_those_who_wait_and_frees_the_caches() -> None:
    """A waiting program gets an error, and so does one that asks afterwards."""
    batch = Batch(Recorder())
    workers = [batch.worker() for _ in range(4)]  # the fourth never comes
    sessions = [batch.start() for _ in range(3)]
    with batch.worker():
        pass
    for session in sessions:
        session.extend([1, 2, 3])  # this thread is not a worker
    closer = threading.Timer(0.2, batch.close)
    closer.start()
    found = in_threads([lambda s=s: s.extend([4]) for s in sessions], workers[:3])
    closer.join()
    assert all(isinstance(error, GenerationError) and "is closed" in str(error) for error in found)
    assert [session.length for session in sessions] == [0, 0, 0]
    for refused in (batch.start, sessions[0].fork, lambda: sessions[0].extend([1])):
        with pytest.raises(GenerationError, match="is closed"):
            refused()
    batch.close()


def test_other_threads_are_not_waited_for() -> None:
    """A thread that is not a worker is answered at once, also while a worker waits for it."""
    batch = Batch(Recorder())

    def program() -> Logits:
        answers: list[Logits] = []
        helper = threading.Thread(target=lambda: answers.append(batch.start().extend([1])), daemon=True)
        helper.start()
        helper.join(30)
        return answers[0]

    found = run_together(batch, [program, lambda: batch.start().extend([1])])
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("use", ["extend", "start", "fork", "close the batch"])
def test_nothing_else_is_in_the_model_during_a_pass(use: str) -> None:
    """Any other thread that uses or closes the model waits until the pass is over."""
    over, early = threading.Event(), []

    def visit() -> None:
        visits[use]()
        early.append(not over.is_set())

    def fault(passes: int) -> None:
        visitor.start()
        visitor.join(0.1)
        over.set()

    batch = Batch(Recorder(fault))
    guest = batch.start()
    visits = {
        "extend": lambda: guest.extend([1]),
        "start": batch.start,
        "fork": guest.fork,
        "close the batch": batch.close,
    }
    visitor = threading.Thread(target=visit, daemon=True)
    found = run_together(batch, [lambda: batch.start().extend([1]), lambda: batch.start().extend([1])])
    visitor.join(30)
    assert early == [False]
    assert np.array_equal(found[0], found[1])


def test_a_worker_is_one_thread() -> None:
    """Two workers in one thread, a worker in two threads, or one that has left would block forever."""
    batch = Batch(Recorder())
    first, second = batch.worker(), batch.worker()
    with first:
        with pytest.raises(RuntimeError, match="a thread is one worker"), second:
            pass
        with pytest.raises(RuntimeError, match="a thread is one worker"), first:
            pass
        second.leave()
        assert batch.start().extend([1]).shape == (VOCABULARY.size,)
    with pytest.raises(RuntimeError, match="the worker has left"), first:
        pass
