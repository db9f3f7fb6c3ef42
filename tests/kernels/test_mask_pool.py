"""Rows of a pool keep their masks through references, eviction and growth, and in unions and differences."""

from __future__ import annotations

import random
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kernel_mask_cases import bitmask_of
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.masks.mask_pool import MaskPool, MaskPoolFull
from structgen_kernels.masks.mask_rows import NOTHING, SPARSE_WORDS, MaskRows, without

import structgen as sg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Matcher, Vocabulary

WIDE = 8_225
"""A vocabulary of 258 words, the last with one token: just above the size at which a sparse row is smaller."""
SPARSE_BYTES = 4 * (1 + 2 + 2 * SPARSE_WORDS)
DENSE_BYTES = 4 * (1 + 258)


def words_of(tokens: set[int], size: int, seed: int = 0) -> NDArray[np.int32]:
    """Make a row with random bits from ``size`` on."""
    allowed = torch.zeros(1, size, dtype=torch.bool)
    allowed[0, sorted(tokens)] = True
    words: NDArray[np.int32] = bitmask_of(allowed, seed)[0].numpy()
    return words


def tokens_of(masks: MaskRows) -> list[set[int]]:
    return [set(row.nonzero()[:, 0].tolist()) for row in masks.allowed()]


def in_words(words: int, size: int = WIDE) -> set[int]:
    """Return one token in each of the last ``words`` words."""
    last = (size + 31) // 32
    return {32 * word for word in range(last - words, last)}


class PoolMachine(RuleBasedStateMachine):
    """A pool and, as its model, a dictionary of sets."""

    keys = st.integers(0, 11)
    kinds = st.sampled_from(["nothing", "everything", "few", "all but few", "many"])

    @initialize(
        size=st.sampled_from([40, WIDE]), rows=st.integers(1, 3), sparse_rows=st.integers(0, 3), grows=st.booleans()
    )
    def begin(self, size: int, rows: int, sparse_rows: int, grows: bool) -> None:
        first_bytes = 4 * (rows * ((size + 31) // 32) + 256 * sparse_rows)
        self.pool = MaskPool(
            size, rows=rows, sparse_rows=sparse_rows, device="cpu", grows=grows, max_bytes=3 * first_bytes + 1
        )
        self.size = size
        self.factor = 3 if grows else 1
        self.most = self.factor * rows
        self.max_bytes = self.factor * first_bytes
        self.there: dict[int, set[int]] = {}
        self.count: dict[int, int] = {}
        self.numbers: dict[int, int] = {}
        self.uploads = 0
        self.made: list[tuple[MaskRows, list[set[int]]]] = []

    @rule(wanted=st.lists(st.tuples(keys, kinds, st.integers(0, 99)), min_size=1, max_size=4))
    def hold(self, wanted: list[tuple[int, str, int]]) -> None:
        keys = [key for key, _, _ in wanted]
        added = {key: self.tokens(kind, seed) for key, kind, seed in reversed(wanted) if key not in self.there}
        # The content of known and of repeated keys is not read, so it is random here.
        rows = np.stack(
            [
                words_of(added[key], self.size, seed) if key not in keys[:index] and key in added else self.nonsense()
                for index, (key, _, seed) in enumerate(wanted)
            ]
        )
        before = len(self.pool), self.pool.uploaded_bytes
        try:
            numbers = self.pool.hold_many(keys, rows)
        except MaskPoolFull:
            assert len({*self.count, *keys}) > self.most
            assert (len(self.pool), self.pool.uploaded_bytes) == before
            return
        self.there |= added
        self.uploads += len(added)
        for key, number in zip(keys, numbers, strict=True):
            assert self.numbers.get(key, number) == number or key in added
            self.numbers[key] = number
            self.count[key] = self.count.get(key, 0) + 1
        for key in list(self.there):
            if self.pool.row(key) is None:
                assert key not in self.count
                assert len(added) > 0
                del self.there[key], self.numbers[key]

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.count)))
        self.pool.release(key)
        self.count[key] -= 1
        if not self.count[key]:
            del self.count[key]

    @rule(key=keys)
    def release_what_is_not_held(self, key: int) -> None:
        if key not in self.count:
            with pytest.raises(KernelArgumentError, match="is not held"):
                self.pool.release(key)

    @rule(data=st.data(), into=st.booleans())
    def restrict(self, data: st.DataObject, into: bool) -> None:
        keys = st.sampled_from([None, *sorted(self.there)])
        lists = data.draw(st.lists(st.lists(st.tuples(keys, st.booleans()), max_size=4), max_size=4))
        codes, expected = [], []
        for row in lists:
            named = [(key, forbids) for key, forbids in row if key is not None]
            allowed = [self.there[key] for key, forbids in named if not forbids]
            forbidden = [self.there[key] for key, forbids in named if forbids]
            tokens = set().union(*allowed) if allowed else set(range(self.size))
            expected.append(tokens.difference(*forbidden))
            codes.append([NOTHING if key is None else self.code(key, forbids) for key, forbids in row])
        if into:
            buffer = torch.full((len(lists) + 2, 5), 77, dtype=torch.int32)
            self.pool.codes_into(buffer, codes)
            masks = MaskRows(self.pool.table, buffer)
            expected += [set(range(self.size))] * 2
        else:
            masks = self.pool.masks(codes)
        assert tokens_of(masks) == expected

    @invariant()
    def what_is_there_means_what_was_put_in(self) -> None:
        keys = sorted(self.there)
        assert [self.pool.row(key) for key in keys] == [self.numbers[key] for key in keys]
        assert len({*self.numbers.values()}) == len(keys) == len(self.pool)
        assert tokens_of(self.pool.masks([[self.numbers[key]] for key in keys])) == [self.there[key] for key in keys]
        assert self.pool.device_bytes <= self.max_bytes
        least, most = sorted((SPARSE_BYTES, 4 * (1 + (self.size + 31) // 32)))
        assert least * self.uploads <= self.pool.uploaded_bytes <= most * self.uploads

    def code(self, key: int, forbids: bool) -> int:
        return without(self.numbers[key]) if forbids else self.numbers[key]

    def tokens(self, kind: str, seed: int) -> set[int]:
        chance = random.Random(seed)
        few = {chance.randrange(self.size) for _ in range(5)}
        many = set(range(chance.randrange(32), self.size, 32))
        every = set(range(self.size))
        return {"nothing": set(), "everything": every, "few": few, "all but few": every - few, "many": many}[kind]

    def nonsense(self) -> NDArray[np.int32]:
        return np.full((self.size + 31) // 32, 0x5A5A5A5A, dtype=np.int32)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=20)


@pytest.mark.parametrize("size", [WIDE, WIDE - 1, 32 * 257 + 31])
@pytest.mark.parametrize("count", [0, 1, SPARSE_WORDS, SPARSE_WORDS + 1, 200])
def test_what_differs_in_few_words_is_sparse(size: int, count: int) -> None:
    """For rows that allow or forbid few tokens, and for any bits from ``size`` on."""
    is_sparse = count <= SPARSE_WORDS
    every = set(range(size))
    last, first = in_words(count, size), set(range(0, 32 * count, 32))
    for held in (last, every - last, first, every - first):
        for seed in range(3):  # the seed of the bits from size on
            pool = MaskPool(size, rows=1, sparse_rows=1, device="cpu")
            row = pool.hold("row", words_of(held, size, seed))
            assert tokens_of(pool.masks([[row], [without(row)]])) == [held, every - held]
            assert pool.uploaded_bytes == (SPARSE_BYTES if is_sparse else 4 * (1 + (size + 31) // 32))


def test_everything_is_sparse_without_the_bits_that_do_not_count() -> None:
    """A row of all ones whose bits from ``size`` on are 0, as the engine writes it, has no word that differs."""
    pool = MaskPool(WIDE, rows=1, sparse_rows=1, device="cpu")
    words = np.full(258, -1, dtype=np.int32)
    words[-1] = 1
    pool.hold("everything", words)
    assert pool.table.sparse[0, :2].tolist() == [-1, 0]


def test_a_small_vocabulary_is_dense() -> None:
    """Up to 256 words a dense row takes no more than a sparse one."""
    for size, words in ((256 * 32, 256), (33, 2)):
        pool = MaskPool(size, rows=1, sparse_rows=1, device="cpu")
        pool.hold("nothing", np.zeros(words, dtype=np.int32))
        assert pool.uploaded_bytes == 4 * (1 + words)


def test_a_row_takes_the_other_form_where_there_is_no_room() -> None:
    """Rows that fit the sparse form may be dense, and small vocabularies may be sparse; no content is lost."""
    pool = MaskPool(WIDE, rows=2, sparse_rows=1, device="cpu", grows=False)
    rows = np.stack([words_of({token}, WIDE) for token in range(3)])
    assert tokens_of(pool.masks([[row] for row in pool.hold_many("abc", rows)])) == [{0}, {1}, {2}]
    assert pool.uploaded_bytes == SPARSE_BYTES + 2 * DENSE_BYTES
    small = MaskPool(33, rows=1, sparse_rows=2, device="cpu", grows=False)
    rows = np.stack([words_of({token}, 33) for token in range(3)])
    assert tokens_of(small.masks([[row] for row in small.hold_many("abc", rows)])) == [{0}, {1}, {2}]
    dense = MaskPool(WIDE, rows=1, sparse_rows=9, device="cpu", grows=False)
    dense.hold("a", words_of(in_words(200), WIDE))
    with pytest.raises(MaskPoolFull, match="1 rows do not fit beside 1 rows with references, in 1 dense"):
        dense.hold("b", words_of(in_words(201), WIDE))
    dense.hold("c", words_of({1}, WIDE))


def test_the_row_that_was_held_last_the_longest_ago_goes_first() -> None:
    pool = MaskPool(40, rows=3, sparse_rows=0, device="cpu", grows=False)
    rows = {key: words_of({index}, 40) for index, key in enumerate("abcdef")}
    for key in "abc":
        pool.hold(key, rows[key])
    for key in "bca":
        pool.release(key)
    pool.hold("b", rows["b"])
    pool.release("b")
    for key, gone in (("d", "c"), ("e", "a"), ("f", "b")):
        pool.hold(key, rows[key])
        assert pool.row(gone) is None
        assert len(pool) == 3


def test_rows_that_are_needed_in_the_same_step_are_not_evicted() -> None:
    pool = MaskPool(40, rows=2, sparse_rows=0, device="cpu", grows=False)
    pool.hold("old", words_of({1}, 40))
    pool.hold("older", words_of({2}, 40))
    pool.release("old")
    pool.release("older")
    numbers = pool.hold_many(["new", "old", "new"], np.stack([words_of({token}, 40) for token in (3, 1, 3)]))
    assert tokens_of(pool.masks([[number] for number in numbers])) == [{3}, {1}, {3}]
    assert pool.row("older") is None
    pool.release("new")
    pool.release("new")
    with pytest.raises(KernelArgumentError, match="'new' is not held"):
        pool.release("new")


def test_a_step_without_room_holds_nothing() -> None:
    pool = MaskPool(40, rows=2, sparse_rows=0, device="cpu", grows=False)
    rows = np.stack([words_of({token}, 40) for token in range(3)])
    pool.hold("a", rows[0])
    pool.hold("b", rows[1])
    pool.release("b")
    with pytest.raises(MaskPoolFull):
        pool.hold_many("bac", rows[[1, 0, 2]])
    pool.release("a")
    for key in "ab":
        assert pool.row(key) is not None
        with pytest.raises(KernelArgumentError, match="is not held"):
            pool.release(key)
    assert tokens_of(pool.masks([[row] for row in pool.hold_many("cb", rows[[2, 1]])])) == [{2}, {1}]


def test_new_rows_of_a_step_are_sent_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = MaskPool(WIDE, rows=4, sparse_rows=4, device="cpu")
    sent: list[int] = []
    make = MaskPool._staging
    monkeypatch.setattr(
        MaskPool, "_staging", lambda self, *shape: sent.append(4 * int(np.prod(shape))) or make(self, *shape)
    )
    held = [set(), in_words(200), {5}, in_words(150)]
    rows = np.stack([words_of(tokens, WIDE) for tokens in held])
    numbers = pool.hold_many("abcd", rows)
    assert sent == [2 * SPARSE_BYTES + 2 * DENSE_BYTES] == [pool.uploaded_bytes]
    assert pool.hold_many("", rows[:0]) == []
    assert pool.hold_many("dcba", rows) == numbers[::-1]  # the content of rows that are in the pool is not read
    assert tokens_of(pool.masks([[number] for number in numbers])) == held
    assert sent[1:] == [4 * 4] == [pool.step_bytes]


def test_growing_keeps_numbers_and_masks_that_were_made() -> None:
    pool = MaskPool(WIDE, rows=1, sparse_rows=1, device="cpu", max_bytes=7 * (4 * 258 + 1024))
    numbers: dict[Hashable, int] = {}
    expected: dict[Hashable, set[int]] = {}
    made = []
    for index in range(7):
        for key, tokens in (("sparse", {index}), ("dense", in_words(200) | {index})):
            expected[key, index] = tokens
            numbers[key, index] = pool.hold((key, index), words_of(tokens, WIDE))
            assert {key: pool.row(key) for key in numbers} == numbers
        made.append(pool.masks([[number] for number in numbers.values()]))
    for count, masks in enumerate(made):
        assert tokens_of(masks) == list(expected.values())[: 2 * count + 2]
    assert pool.device_bytes == 7 * (4 * 258 + 1024)
    table = pool.table
    with pytest.raises(MaskPoolFull, match=r"beside 14 rows with references, in 7 .* or raise max_bytes=14,392"):
        pool.hold("one more", words_of({3}, WIDE))
    assert pool.row("one more") is None
    assert pool.table is table


def test_a_pool_that_does_not_grow_keeps_its_tensors() -> None:
    """Numbers of rows are row numbers of the table, so the device can compute codes."""
    pool = MaskPool(WIDE, rows=2, sparse_rows=2, device="cpu", grows=False, max_bytes=1)
    table = pool.table
    places = table.dense.data_ptr(), table.sparse.data_ptr()
    for index in range(9):
        row = pool.hold(index, words_of(in_words(150) if index % 3 else {index}, WIDE))
        codes = torch.tensor([[row], [without(row)]], dtype=torch.int32)
        assert torch.equal(MaskRows(table, codes).allowed(), pool.masks([[row], [without(row)]]).allowed())
        pool.release(index)
    assert pool.table is table
    assert (table.dense.data_ptr(), table.sparse.data_ptr()) == places


@pytest.mark.usefixtures("backend")
def test_batches_mix_requests_drafts_and_canvases() -> None:
    """Rows of logits are requests, positions of drafts or slots of canvases; some are unconstrained."""
    size = WIDE
    pool = MaskPool(size, rows=2, sparse_rows=8, device="cpu")
    meaning = {"digits": set(range(10)), "no quote": set(range(size)) - {7}, "eos": {0}, "prose": in_words(200)}
    rows = pool.hold_many(list(meaning), np.stack([words_of(tokens, size) for tokens in meaning.values()]))
    number = dict(zip(meaning, rows, strict=True))
    # Four requests: without a constraint, with a draft of two tokens, with a canvas of three slots, and at its end.
    batch: dict[tuple[int, int], tuple[list[str], list[str]]] = {
        (0, 0): ([], []),
        (1, 0): (["digits"], []),
        (1, 1): (["digits", "prose"], ["eos"]),
        (1, 2): (["no quote"], ["digits"]),
        (2, 0): (["prose"], []),
        (2, 1): ([], ["eos"]),
        (2, 2): (["digits", "eos", "prose"], ["no quote"]),
        (3, 0): (["eos"], []),
    }
    masks = pool.masks(
        [[*(number[n] for n in may), *(without(number[n]) for n in not_)] for may, not_ in batch.values()]
    )
    assert masks.codes.shape == (8, 4)
    logits = torch.zeros(8, size)
    apply_mask(logits, masks)
    for row, (may, may_not) in enumerate(batch.values()):
        allowed = set().union(*(meaning[name] for name in may)) if may else set(range(size))
        assert set((logits[row] == 0).nonzero()[:, 0].tolist()) == allowed.difference(*(meaning[n] for n in may_not))


def test_codes_are_written_where_a_captured_step_reads_them() -> None:
    pool = MaskPool(40, rows=2, sparse_rows=0, device="cpu", grows=False)
    row = pool.hold("a", words_of({1, 2}, 40))
    buffer = torch.full((3, 2), 99, dtype=torch.int32)
    captured = MaskRows(pool.table, buffer)
    pool.codes_into(buffer, [[row], [without(row)]])
    assert buffer.tolist() == [[row, NOTHING], [without(row), NOTHING], [NOTHING, NOTHING]]
    every = set(range(40))
    assert tokens_of(captured) == [{1, 2}, every - {1, 2}, every]
    assert pool.step_bytes == 24
    assert tokens_of(pool.masks([])) == []


def test_rows_may_be_tensors() -> None:
    pool = MaskPool(40, rows=2, sparse_rows=0, device="cpu")
    words = bitmask_of(torch.arange(40)[None] % 3 == 0)
    assert pool.hold("a", words[0]) == pool.hold_many(["a", "b"], torch.cat((words, ~words)))[0]
    assert tokens_of(pool.masks([[0], [1]])) == [{*range(0, 40, 3)}, {*range(40)} - {*range(0, 40, 3)}]


@pytest.mark.parametrize(
    ("made", "argument"),
    [
        (lambda pool: pool.hold("a", np.zeros(3, dtype=np.int32)), "rows"),
        (lambda pool: pool.hold("a", np.zeros(2, dtype=np.int64)), "rows"),
        (lambda pool: pool.hold("a", torch.zeros(2)), "rows"),
        (lambda pool: pool.hold_many(["a"], np.zeros((2, 2), dtype=np.int32)), "rows"),
        (lambda pool: pool.release("a"), "key"),
        (lambda pool: pool.masks([[0]]), "lists"),
        (lambda pool: pool.masks([[NOTHING] * 9]), "lists"),
        (lambda pool: pool.masks([[2**40]]), "lists"),
        (lambda pool: pool.masks([[without(3)]]), "lists"),
        (lambda pool: pool.codes_into(torch.zeros(1, 1, dtype=torch.int64), [[]]), "buffer"),
        (lambda pool: pool.codes_into(torch.zeros(1, 2, dtype=torch.int32), [[], []]), "buffer"),
        (lambda pool: pool.codes_into(torch.zeros(1, 1, dtype=torch.int32), [[NOTHING] * 2]), "lists"),
        (lambda _: MaskPool(0, rows=1, sparse_rows=0, device="cpu"), "size, rows and sparse_rows"),
        (lambda _: MaskPool(8, rows=0, sparse_rows=4, device="cpu"), "size, rows and sparse_rows"),
    ],
)
def test_wrong_arguments_are_refused(made: Any, argument: str) -> None:
    pool = MaskPool(40, rows=2, sparse_rows=2, device="cpu")
    with pytest.raises(KernelArgumentError) as caught:
        made(pool)
    assert caught.value.argument == argument
    assert pool.uploaded_bytes == pool.step_bytes == len(pool) == 0


def test_a_row_that_was_evicted_is_no_longer_named() -> None:
    pool = MaskPool(40, rows=4, sparse_rows=0, device="cpu")
    kept = pool.hold("kept", words_of({1}, 40))
    with pytest.raises(KernelArgumentError, match="not in the pool, or was evicted"):
        pool.masks([[kept], [kept + 1]])


def test_a_pool_of_inference_mode_serves_outside_of_it() -> None:
    with torch.inference_mode():
        pool = MaskPool(40, rows=1, sparse_rows=0, device="cpu")
        pool.hold_many("abc", np.stack([words_of({token}, 40) for token in range(3)]))
    table = pool.table
    row = pool.hold("d", words_of({3}, 40))
    assert pool.table is table  # of four rows
    with torch.inference_mode():
        assert tokens_of(pool.masks([[row]])) == [{3}]
        pool.hold("e", words_of({4}, 40))


def test_threads_share_a_pool() -> None:
    """Each thread holds, reads and releases rows; the rows keep their content."""
    pool = MaskPool(WIDE, rows=8, sparse_rows=4, device="cpu", grows=False)
    contents = [in_words(140 + index) if index % 2 else {index} for index in range(12)]
    rows = np.stack([words_of(tokens, WIDE) for tokens in contents])
    failures: list[object] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(40):
                keys = chance.sample(range(12), 2)
                numbers = pool.hold_many(keys, rows[keys])
                found = tokens_of(pool.masks([[number] for number in numbers]))
                if found != [contents[key] for key in keys]:
                    failures.append(keys)
                for key in keys:
                    pool.release(key)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for key in range(12):
        with pytest.raises(KernelArgumentError, match="is not held"):
            pool.release(key)


def test_a_batch_at_steady_state_sends_codes_alone(json_vocabulary: Vocabulary) -> None:
    """For 32 sequences over a JSON schema, each mask is uploaded once; codes are 4 bytes per sequence."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "kind": {"enum": ["true", "null", "ab"]},
            "scores": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
        },
        "required": ["name", "kind"],
        "additionalProperties": False,
    }
    vocabulary = json_vocabulary.with_size(9_000)  # more than 256 words, so that rows are sparse
    constraint = sg.compile(sg.json_schema(schema), vocabulary)
    pool = MaskPool(vocabulary.size, rows=8, sparse_rows=256, device="cpu")
    chance = random.Random(0)

    def run(steps: int) -> None:
        matchers: list[Matcher] = [constraint.matcher() for _ in range(32)]
        words = np.zeros((32, (vocabulary.size + 31) // 32), dtype=np.int32)
        for _ in range(steps):
            sg.fill_masks(matchers, words)
            keys = [row.tobytes() for row in words]
            allowed = pool.masks([[row] for row in pool.hold_many(keys, words)]).allowed()
            for index, matcher in enumerate(matchers):
                assert matcher.accept(chance.choice(allowed[index].nonzero()[:, 0].tolist()))
                if matcher.is_terminated:
                    matchers[index] = constraint.matcher()
            for key in keys:
                pool.release(key)

    for _ in range(40):
        before = pool.uploaded_bytes
        run(40)
        if pool.uploaded_bytes == before:
            break
    uploaded, sent = pool.uploaded_bytes, pool.step_bytes
    assert uploaded == SPARSE_BYTES * len(pool) > 0
    run(30)
    assert pool.uploaded_bytes == uploaded
    assert (pool.step_bytes - sent) / (30 * 32) == 4  # where 64 are allowed
