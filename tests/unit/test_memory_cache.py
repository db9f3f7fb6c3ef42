"""Caches in memory: one bound for the process, in bytes, and a report of what is held."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen import heap, memory_cache
from structgen.decode.speculative.drafters import auto
from structgen.decode.speculative.drafters.grammar_statistics import GrammarStatistics
from structgen.decode.speculative.drafters.retrieval import Retrieval
from structgen.engine import lowering
from structgen.engine.mask import empty_masks
from structgen.errors import ArgumentError
from structgen.frontends.json_schema import forget_known
from structgen.grammar.flattening import memory_of, recognizes
from structgen.memory_cache import ContentCache, Share, cached

MB = 1 << 20
NODE_BYTES = 100  # of a node of a grammar, about
BOUNDARY = (type, ModuleType, sg.Vocabulary, lowering.Engine, memory_cache.Share, ContentCache)
WORDS = [bytes([byte]) for byte in range(256)] + [
    f"{one}{other}".encode() for one in "abcdefghijklmnop" for other in "aeiou_"
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The least bound, in bytes, on a process whose caches are empty; engines of other tests are not followed."""
    before = sg.cache_limits().megabytes
    sg.clear_caches()
    monkeypatch.setattr(lowering._ENGINES, "live", memory_cache.Followed())
    try:
        yield sg.cache_limits(megabytes=8).megabytes * MB
    finally:
        sg.cache_limits(megabytes=before)


def words() -> sg.Vocabulary:
    """A vocabulary of its own."""
    return sg.Vocabulary([*WORDS, b"<eos>"], eos=[len(WORDS)])


def schema(number: int) -> dict[str, Any]:
    """Different schemas with names, numbers and patterns of their own."""
    return {
        "type": "object",
        "properties": {
            f"name_{number}": {"type": "string", "maxLength": 5 + number},
            f"count_{number}": {"type": "number", "minimum": -number, "maximum": 1000 * number + 7},
            f"code_{number}": {"type": "string", "pattern": f"^[a-d]{{{number % 7 + 1}}}_{number}(bo|ca)*$"},
            f"kind_{number}": {
                "enum": [f"one_{number}", *(f"{number}{word * 9}" for word in "abcdefghijklmnopqrst"), number]
            },
        },
        "required": [f"name_{number}", f"kind_{number}"],
    }


def masks_of(number: int, vocabulary: sg.Vocabulary) -> np.ndarray[Any, Any]:
    """All masks along a text of a schema."""
    text = f'{{"name_{number}": "abe", "count_{number}": {number}.5, "kind_{number}": "one_{number}"}}'
    matcher = sg.compile(sg.json_schema(schema(number)), vocabulary).matcher()
    tokens = vocabulary.tokenize(text)
    masks = empty_masks(vocabulary, len(tokens))
    for row, token in enumerate(tokens):
        matcher.fill_mask(masks, row)
        assert matcher.accept(token)
    assert matcher.is_accepting
    return masks


def test_the_bound_is_read_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts add up to it, and the environment says what it is at first."""
    monkeypatch.setattr(memory_cache, "_megabytes", None)
    for stated, expected in ((None, 384), ("", 384), (" 64 ", 64)):
        monkeypatch.setattr(memory_cache, "_megabytes", None)
        if stated is None:
            monkeypatch.delenv("STRUCTGEN_CACHE_MB", raising=False)
        else:
            monkeypatch.setenv("STRUCTGEN_CACHE_MB", stated)
        limits = sg.cache_limits()
        assert limits.megabytes == expected
        assert sum(limits.bytes.values()) == expected * MB
        assert set(limits.bytes) == set(memory_cache._PARTS)
    monkeypatch.setenv("STRUCTGEN_CACHE_MB", "1000")
    assert sg.cache_limits().megabytes == 64  # it is read once
    assert sg.cache_limits(megabytes=32) == sg.cache_limits()
    assert sg.memory().limit == 32 * MB


@pytest.mark.parametrize("value", [0, -1, 7, True, 8.5, "64", 1 << 40])
def test_a_bad_bound_is_refused(value: Any) -> None:
    """The error says what is wrong and what is possible, and the bound stays."""
    before = sg.cache_limits()
    with pytest.raises(ArgumentError, match="whole number of megabytes, at least 8"):
        sg.cache_limits(megabytes=value)
    assert sg.cache_limits() == before


@pytest.mark.parametrize("stated", ["many", "-5", "1e3", "7", "99999999999999999999999999"])
def test_a_bad_bound_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch, stated: str) -> None:
    """Where it is needed first, by the name of the variable."""
    monkeypatch.setattr(memory_cache, "_megabytes", None)
    monkeypatch.setenv("STRUCTGEN_CACHE_MB", stated)
    forget_known()
    with pytest.raises(ArgumentError, match="STRUCTGEN_CACHE_MB must be a whole number"):
        sg.json_schema({"type": "string", "maxLength": 4_321})
    with pytest.raises(ArgumentError, match="the default is 384"):
        sg.cache_limits()


def test_a_cache_drops_what_was_used_longest_ago() -> None:
    """It holds at most its limit of bytes, and counts its hits."""
    cache: ContentCache[int] = ContentCache(Share("numbers", max_bytes=100))
    for index in range(4):
        cache.put(index, index * index, size=30)
        cache.get(0)
    assert [cache.get(index) for index in range(4)] == [0, None, 4, 9]
    cache.put("large", 0, size=101)
    info = cache.info()
    assert cache.get("large") is None
    assert info.bytes <= 100
    assert info.bytes == 30 * info.entries
    cache.put(3, 10, size=40)
    assert cache.get(3) == 10
    cache.put(3, 11, size=101)
    assert cache.get(3) is None
    assert cache.clear() == 60
    assert cache.info().bytes == 0


def test_caches_of_one_share_are_bounded_together() -> None:
    """An idle cache gives way to one that is used, and one that died leaves its room."""
    share = Share("letters", max_bytes=100)
    idle, busy, dying = (ContentCache[int](share) for _ in range(3))
    dying.put(0, 0, size=40)
    idle.put(0, 0, size=30)
    idle.put(1, 1, size=30)
    del dying
    gc.collect()
    busy.put(0, 0, size=40)
    assert share.held() == (3, 100)
    busy.put(1, 1, size=20)
    assert (idle.info().bytes, busy.info().bytes) == (30, 60)
    idle.get(1)
    busy.put(2, 2, size=60)
    assert share.held()[1] <= 100
    assert busy.get(2) == 2


def test_a_cache_keeps_its_count_under_threads() -> None:
    """Sizes add up for every order of the calls."""
    share = Share("numbers", max_bytes=1_000)
    caches = [ContentCache[int](share) for _ in range(2)]

    def work(seed: int) -> None:
        for step in range(500):
            key = (seed * 31 + step * 7) % 40
            if caches[key % 2].get(key) is None:
                caches[key % 2].put(key, key, size=50)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    infos = [cache.info() for cache in caches]
    assert all(info.bytes == 50 * info.entries for info in infos)
    assert sum(info.bytes for info in infos) == share.bytes <= 1_000
    assert sum(info.hits + info.misses for info in infos) == 2_000


def test_results_are_cached_in_bytes() -> None:
    """Every result is, false ones too, and large ones push out others."""
    share, calls = Share("texts", max_bytes=4_000), []

    @cached(share, len)
    def repeated(text: str, count: int) -> str:
        calls.append((text, count))
        return text * count

    assert [repeated("", 3), repeated("", 3), repeated("a", 2), repeated("a", 2)] == ["", "", "aa", "aa"]
    assert calls == [("", 3), ("a", 2)]
    repeated("b", 3_000)
    repeated("", 3)
    assert calls[2:] == [("b", 3_000), ("", 3)]
    assert [repeated("c", count=number) for number in (1, 2, 1)] == ["c", "cc", "c"]
    assert calls[4:] == [("c", 1), ("c", 2)]


def test_equal_vocabularies_share_an_engine_and_leave_nothing(small: int) -> None:
    """A process may load its vocabulary for each request."""
    first = words()
    masks = masks_of(2, first)
    for _ in range(20):
        again = words()
        assert np.array_equal(masks_of(2, again), masks)
        assert again.engine is first.engine
    gc.collect()  # its cached constraints refer to a vocabulary
    masks_of(2, again)
    last = words()
    masks_of(2, last)
    assert last.engine is first.engine is not None
    assert len(first.engine.vocabularies) <= 3
    assert sg.memory()["engines"].count == 1
    assert small > 0


def test_a_lower_bound_takes_effect_at_once(small: int) -> None:
    """What is too much goes when the bound is set, and new constraints have rows within it."""
    sg.cache_limits(megabytes=200)
    vocabulary = words()
    for number in range(60):
        masks_of(number, vocabulary)
    limits = sg.Limits()
    assert lowering.native_limits(limits).cache_bytes == sg.cache_limits().bytes["engines"]
    held = sg.memory()
    assert held.cached > 3 * MB
    sg.cache_limits(megabytes=8)
    report = sg.memory()
    assert all(report[name].bytes <= most for name, most in sg.cache_limits().bytes.items())
    assert report["grammars"].bytes < held["grammars"].bytes
    assert lowering.native_limits(limits).cache_bytes == sg.cache_limits().bytes["engines"] < small


def test_the_bound_holds_over_many_schemas(small: int) -> None:
    """Bytes are counted after each schema; what was dropped is made again with the same masks."""
    vocabulary, limits = words(), sg.cache_limits().bytes
    expected, released, count = {}, lowering._ENGINES._released, 80
    for number in range(count):
        masks = masks_of(number, vocabulary)
        if number % 8 == 0:
            expected[number] = masks
            report = sg.memory()
            assert all(report[name].bytes <= most for name, most in limits.items() if name != "engines")
            assert report["engines"].bytes <= 1.2 * limits["engines"]
            assert report["engines kept by constraints"].count == 0
    assert vocabulary.constraints.info().entries < count  # some were dropped
    assert lowering._ENGINES._released > released  # the engine was replaced
    other = words()
    for number, masks in expected.items():
        assert np.array_equal(masks_of(number, vocabulary), masks)
        assert np.array_equal(masks_of(number, other), masks)
    sg.clear_caches()
    for number, masks in expected.items():
        assert np.array_equal(masks_of(number, vocabulary), masks)
    assert small == 8 * MB


def test_large_terms_of_small_schemas_are_bounded(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty bytes of ``multipleOf`` make an automaton, which grammars and planners hold; the bound counts them all."""

    def live() -> int:
        gc.collect()
        return sum(issubclass(type(each), sg.Grammar) for each in gc.get_objects())

    monkeypatch.setattr(memory_cache, "_megabytes", 2)
    before, made = live(), 0
    for step in range(13, 67, 3):
        made += memory_of(sg.json_schema({"type": "integer", "multipleOf": step}))
    assert made > small
    assert (live() - before) * NODE_BYTES < small / 4
    assert sg.memory().cached <= small / 4


def test_engines_that_constraints_keep_are_reported(small: int) -> None:
    """They are shared no more, and gone with the last constraint."""
    vocabulary, kept = words(), []
    number = 0
    while sg.memory()["engines kept by constraints"].count < 2:
        masks_of(number, vocabulary)
        kept.append(sg.compile(sg.json_schema(schema(number)), vocabulary))
        number += 1
        assert number < 400
    report = sg.memory()
    retired = {constraint.engine for constraint in kept if constraint.engine is not vocabulary.engine}
    assert report["engines kept by constraints"].count == len(retired)
    assert report["engines kept by constraints"].bytes == sum(engine.native.memory_bytes for engine in retired)
    kept[0].matcher().fill_mask(empty_masks(vocabulary))  # still works
    own = sg.compile(sg.regex("[a-z]+"), vocabulary).alone()
    assert sg.memory()["engines of single constraints"].count == 1
    del retired, own
    kept.clear()
    gc.collect()
    report = sg.memory()
    assert report["engines kept by constraints"].count == report["engines of single constraints"].count == 0


def test_constraints_with_engines_of_their_own_are_bounded(small: int) -> None:
    """A cached constraint counts with its engine."""
    sg.cache_limits(megabytes=64)
    vocabulary = words()
    for number in range(6):
        constraint = sg.compile(sg.literal("x" * 600_000 + str(number)), vocabulary)
        assert not constraint.engine.is_shared
    del constraint
    info, report = vocabulary.constraints.info(), sg.memory()
    assert report["engines of single constraints"].count == info.entries < 6
    assert report["engines of single constraints"].bytes < info.bytes <= sg.cache_limits().bytes["constraints"]
    assert small > 0


def test_idle_engines_give_way(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All vocabularies together are within the bound, and that which is used keeps its engine."""
    monkeypatch.setattr(lowering, "_IDLE_USES", 6)
    idle, busy = words(), sg.Vocabulary([*WORDS, b"and", b"<eos>"], eos=[len(WORDS) + 1])
    for number in range(8):
        masks_of(number, idle)
    engine = weakref.ref(idle.engine)
    assert engine() is not None
    number = 0
    while idle.engine is not None:
        masks_of(number, busy)
        number += 1
        assert number < 200
    gc.collect()
    assert engine() is None
    assert busy.engine is not None
    assert sg.memory()["engines"].bytes <= 1.2 * sg.cache_limits().bytes["engines"]
    assert small > 0


def test_rows_of_a_kept_engine_are_dropped_and_made_again() -> None:
    """The masks are the same."""
    vocabulary = words()
    constraint = sg.compile(sg.json_schema(schema(3)), vocabulary).alone()
    before, after = empty_masks(vocabulary), empty_masks(vocabulary)
    matcher = constraint.matcher()
    assert matcher.accept_bytes(b'{"name_3": "a') == 13
    matcher.fill_mask(before)
    engine = constraint.engine
    held = engine.native.statistics["cache_bytes"]
    engine.drop_rows()
    assert engine.native.statistics["cache_bytes"] < held
    matcher.fill_mask(after)
    assert np.array_equal(before, after)


def test_tries_that_a_vocabulary_derives_are_bounded(small: int) -> None:
    """Rows that end within tokens make new tries, and the vocabulary keeps the last of them."""
    rng = random.Random(1)
    tokens = sorted({bytes(rng.choices(b"abcdefghij", k=rng.randint(2, 9))) for _ in range(4_000)})
    vocabulary = sg.Vocabulary([*WORDS[:256], *tokens, b"<eos>"], eos=[256 + len(tokens)])
    trie, masks, sizes = vocabulary.trie, [], []
    nested = 'start: word tail\nword: /[a-j]{{1,{}}}[a-{}]/ | "<" word ">"\ntail: /[a-j!]*/'
    grammars = [sg.lark(nested.format(n % 5 + 1, "bcdefghij"[n % 9])) for n in range(45)]
    constraints = [sg.compile(grammar, vocabulary) for grammar in grammars]
    for _ in range(2):
        sg.clear_caches()
        empty = trie.memory_bytes
        for constraint in constraints:
            mask = empty_masks(vocabulary)
            constraint.alone().matcher().fill_mask(mask)
            masks.append(mask)
            sizes.append(trie.memory_bytes - empty)
    assert max(sizes) <= trie.derived_limit
    assert sum(max(after - before, 0) for before, after in itertools.pairwise(sizes[:45])) > trie.derived_limit
    assert sizes[:45] == sizes[45:]  # clear_caches() drops them all
    assert all(np.array_equal(one, again) for one, again in zip(masks[:45], masks[45:], strict=True))
    assert small > 0


def test_memory_goes_back_at_a_counted_interval(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many bytes of engines, not after each compilation; and at once where caches are emptied."""
    calls: list[int] = []
    monkeypatch.setattr(heap, "_of_glibc", lambda name: calls.append)
    sg.clear_caches()
    assert calls == [0]
    calls.clear()
    monkeypatch.setattr(lowering, "return_memory", lambda: calls.append(1))
    monkeypatch.setattr(lowering, "_RETURNED_BYTES", 3 * MB)
    vocabulary = words()
    for number in range(60):
        masks_of(number, vocabulary)
    released = lowering._ENGINES._released + 3 * MB * len(calls)
    assert 1 <= len(calls) <= released // (3 * MB) < 10
    assert small > 0


def test_the_report_travels_and_reads(small: int) -> None:
    """It is a value with a line for each kind."""
    vocabulary = words()
    masks_of(1, vocabulary)
    report = sg.memory()
    assert pickle.loads(pickle.dumps(report)) == copy.deepcopy(report) == report
    names = [one.name for one in report.held]
    assert [line[:32].strip() for line in str(report).splitlines()][: len(names)] == names
    assert report.cached == sum(one.bytes for one in report.held if one.limit is not None) <= small
    assert report["vocabularies"].count >= 1
    assert report["vocabularies"].bytes > sum(map(len, WORDS))
    assert report.resident is None or report.resident > report.cached
    with pytest.raises(KeyError):
        report["unknown"]
    sg.clear_caches()
    assert sg.memory().cached == 0


def test_grammars_for_single_texts_are_bounded_too(small: int) -> None:
    """``recognizes`` has an engine for each grammar, which counts against the bound."""
    grammars = [sg.regex(f"[a-{chr(98 + number % 20)}]{{{number}}}x*") for number in range(60)]
    for number, grammar in enumerate(grammars):
        assert recognizes(grammar, "a" * number + "x" * 300)
        assert not recognizes(grammar, "a" * number + "y")
    report = sg.memory()
    assert 0 < report["other terms"].bytes <= sg.cache_limits().bytes["other terms"] < small


def test_draft_statistics_are_bounded_and_reported(small: int) -> None:
    """In proportion to the bound of the process; what is reported is about what they take."""
    gc.collect()
    others = sg.memory()["draft statistics"]  # of vocabularies that other tests keep
    vocabulary, rng = words(), random.Random(5)
    drafting = auto._drafters_of(vocabulary)
    retrieval, counts = drafting.drafters[2], drafting.drafters[3]
    assert isinstance(retrieval, Retrieval)
    assert isinstance(counts, GrammarStatistics)
    assert retrieval.distributions is not None
    constraint = sg.compile(sg.regex("[a-z]*"), vocabulary)
    for state in range(1_000):
        output = [rng.randrange(300) for _ in range(20)]
        retrieval.store.add(output)
        retrieval.distributions.learn(vocabulary, [(output[:2], output[2:5], [3.0, 2.0, 1.0])])
        counts.counts.add(constraint, ((state, *output[:2]), (state, output[1]), state), output[2])
    assert len(retrieval.store) <= 683  # 32,768 * 8 / 384
    assert len(retrieval.distributions) == counts.counts.states(constraint) == 342
    told = sg.memory()["draft statistics"]
    held = sum(map(deep_size, (retrieval.store, retrieval.distributions, counts.counts._counts[constraint.engine])))
    assert 0.7 * held < told.bytes - others.bytes < 1.5 * held
    assert told.count - others.count >= 683 - 21 + 2 * 342
    sg.cache_limits(megabytes=small // MB + 1)
    assert auto._drafters_of(vocabulary) is not drafting
    assert sg.memory()["draft statistics"].count == others.count
    assert auto._drafters_of(vocabulary) is auto._drafters_of(vocabulary)
    assert sg.cache_limits(megabytes=1_000).megabytes == 1_000
    assert memory_cache.entries_within(100) == 100


def test_caches_hold_at_most_what_they_say(small: int) -> None:
    """Grammar nodes included, also those of terms and reports that are made after their grammar is cached."""
    vocabulary = words()
    for number in range(80):
        grammar = sg.json_schema({**schema(number), "title": str(number)})
        assert sg.compile(grammar, vocabulary).report.entries
        assert grammar.children
    caches = [cache._held for share in memory_cache._shares.values() for cache in share.caches]
    told = sum(sg.memory()[name].bytes for name in memory_cache._PARTS if name != "engines")
    assert small // 64 < deep_size(caches) < told <= small


def deep_size(root: object) -> int:
    """The bytes of an object and of all that it refers to, but for what caches do not own."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, BOUNDARY) and not callable(each):
            seen[id(each)] = each
            left += gc.get_referents(each)
    return sum(map(sys.getsizeof, seen.values()))


def resident_along(count: int, every: int) -> list[int]:
    """Resident bytes of this process, and the bytes in its caches at the end, while it compiles many schemas."""
    sg.cache_limits(megabytes=16)
    vocabulary, found = words(), []
    for number in range(count + 1):
        masks_of(number, vocabulary)
        if number % every == 0:
            found.append(sg.memory().resident or 0)
    return [*found, sg.memory().cached]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell the resident memory of a process")
def test_resident_memory_is_flat() -> None:
    """After the bound is reached, a process grows by less than a tenth."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        *found, held = pool.submit(resident_along, 2_000, 250).result()
    assert max(found[2:]) < 1.1 * found[2]
    assert held <= 1.1 * 16 * MB
