"""The answer to one request of a server, against brute force over a finite language."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

import structgen as sg
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.engine.row_buffer import RowBuffer
from structgen.integrations import request_matcher
from structgen.integrations.request_matcher import RequestMatcher, fill_rows

TOKENS = [b"", b"a", b"b", b"ab", b"ba", b"abab", b"c", b""]
EOS, TURN = 0, 7
WORDS = {"a", "ab", "abab", "bac", "ababc", "abba", "c"}
VOCABULARY = sg.Vocabulary(TOKENS, eos=[EOS], special={TURN: "<turn>"})


def _request(limit: int | None = None, eos: Sequence[int] = (EOS,)) -> RequestMatcher:
    return RequestMatcher(sg.compile(sg.select(sorted(WORDS)), VOCABULARY.with_eos(eos)).matcher(), limit)


@cache
def _fewest(text: str) -> float:
    """The fewest tokens that complete a text, by search."""
    if text in WORDS:
        return 0
    starts = [text + token.decode() for token in TOKENS if token]
    return 1 + min((_fewest(each) for each in starts if _is_start(each)), default=float("inf"))


def _is_start(text: str) -> bool:
    return any(word.startswith(text) for word in WORDS)


def _expected(taken: Sequence[int], limit: int | None, eos: Sequence[int] = (EOS,)) -> set[int]:
    text = b"".join(TOKENS[token] for token in taken).decode()
    left = float("inf") if limit is None else limit - len(taken)
    after = {token: text + TOKENS[token].decode() for token in range(len(TOKENS)) if TOKENS[token]}
    found = {token for token, each in after.items() if _is_start(each) and _fewest(each) <= left - 1}
    return found | (set(eos) if text in WORDS else set())


def _runs() -> list[list[int]]:
    """All token sequences of prefixes of words."""
    found: list[list[int]] = [[]]
    for run in found:
        text = b"".join(TOKENS[token] for token in run).decode()
        found += [[*run, token] for token in range(8) if TOKENS[token] and _is_start(text + TOKENS[token].decode())]
    return found


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 5])
def test_rows_allow_what_can_be_completed_within_the_limit(limit: int | None) -> None:
    """After every run of tokens from which the limit can still be kept."""
    for run in _runs():
        text = b"".join(TOKENS[token] for token in run).decode()
        if limit is not None and _fewest(text) > limit - len(run):
            continue
        request, rows = _request(limit), empty_masks(8)
        assert request.accept(run)
        request.fill(rows, 0)
        assert set(allowed_ids(rows[0], 8)) == _expected(run, limit), (run, limit)


@pytest.mark.parametrize("limit", [None, 2, 4])
def test_a_batch_has_the_rows_of_its_requests(limit: int | None) -> None:
    """With and without drafts, refused drafts, answers that are over, and limits, in one call."""
    chains = [[], [1], [3, 1, 2], [1, 6, 1], [2, 1, 6, EOS], [EOS], [5, 6]]
    requests = [_request(limit) for _ in chains]
    over = _request(limit)
    assert over.accept([1, EOS])
    rows = np.full((sum(len(chain) + 1 for chain in chains) + 3, 1), 7, dtype=np.int32)
    fill_rows([*requests, over], [*chains, [1, 2]], rows)
    assert (rows[-3:] == -1).all()
    at = 0
    for chain in chains:
        last, is_refused = _expected([], limit), False
        for length in range(len(chain) + 1):
            token = chain[length - 1] if length else None
            is_refused = is_refused or (token is not None and (token not in last or token == EOS))
            last = last if is_refused else _expected(chain[:length], limit)
            if token != EOS:  # after the end, nothing is written
                assert set(allowed_ids(rows[at], 8)) == last, (chain, length)
            at += 1
    assert all(request.taken == 0 for request in requests)


def test_stop_tokens_of_the_request_end_the_answer() -> None:
    """They are allowed where the answer may end, and nowhere else."""
    request, rows = _request(eos=(EOS, TURN)), empty_masks(8)
    assert not request.accept([TURN])
    assert request.accept([3])
    request.fill(rows, 0)
    assert set(allowed_ids(rows[0], 8)) == _expected([3], None, (EOS, TURN))
    assert request.accept([TURN])
    assert request.is_over


def test_tokens_past_the_end_have_no_effect_and_are_taken_back_first() -> None:
    """In one run or alone; rollback goes over the end, and over nothing."""
    request, rows = _request(), empty_masks(8)
    assert request.accept([3, EOS, 6, 6])
    assert request.accept([2])
    assert request.is_over
    assert request.taken == 2
    assert request.validate([1]) == []
    request.fill(rows, 0)
    assert (rows == -1).all()
    request.rollback(0)
    request.rollback(3)
    assert request.is_over
    request.rollback(1)
    assert not request.is_over
    request.fill(rows, 0)
    assert set(allowed_ids(rows[0], 8)) == _expected([3], None)
    request.rollback(1)
    with pytest.raises(ValueError, match="1 tokens of 0"):
        request.rollback(1)


def test_a_refused_run_changes_nothing() -> None:
    """Neither does asking what would be accepted, with ids that are no tokens."""
    request = _request()
    assert not request.accept([1, 2, 6])
    assert request.taken == 0
    assert request.validate([1, 2, 6]) == [1, 2]
    assert request.validate([1, -1, 2]) == [1]
    assert request.validate([99]) == []
    assert request.taken == 0


def test_forced_text_is_drafted_before_and_after_proposals() -> None:
    """In canonical tokens; proposals that disagree are dropped."""
    grammar = "c" + sg.select(["a", "b"]) + "cc"
    request = RequestMatcher(sg.compile(grammar, VOCABULARY).matcher())
    assert request.drafts([], 8) == [6]
    assert request.drafts([1], 8) == [6]
    assert request.drafts([6, 2, 6], 8) == [6, 2, 6, 6]
    assert request.drafts([6, 2, 1], 8) == [6, 2, 6, 6]
    assert request.drafts([6, 2], 3) == [6, 2, 6]
    assert request.accept([6, 1])
    assert request.drafts([1], 8) == [6, 6]
    assert request.accept([6, 6])
    assert request.drafts([EOS], 8) == [EOS]
    assert request.taken == 4


def test_a_limit_that_cannot_be_kept_is_none() -> None:
    """``limit_to`` says so; an answer that is complete exactly at its limit ends with EOS."""
    request, rows = _request(), empty_masks(8)
    assert request.accept([2])  # b, and only bac is left
    assert not request.limit_to(1)
    assert request.limit is None
    assert request.limit_to(2)
    assert request.accept([1, 6])
    assert request.left == 0
    request.fill(rows, 0)
    assert set(allowed_ids(rows[0], 8)) == {EOS}


@pytest.mark.parametrize("drafts", [[], [97]])
def test_an_error_of_a_matcher_ends_its_own_answer(drafts: list[int]) -> None:
    """Its rows allow only EOS, and it takes no token any more; others of its batch go on."""
    whole = sg.Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])
    evil = sg.compile(sg.regex("[ab]*a[ab]{18}"), whole, limits=sg.Limits(states=3_000))
    broken = RequestMatcher(evil.matcher())
    other = RequestMatcher(sg.compile(sg.regex("[ab]{1,900}"), whole).matcher())
    numbers, rows = random.Random(3), empty_masks(whole, 4)
    for _ in range(2_000):
        token = numbers.choice(b"ab")
        if not broken.accept([token]):
            break
        fill_rows([broken], [drafts], rows)
    assert broken.failure is not None
    assert not broken.accept([256])
    fill_rows([other, broken], [drafts, drafts], rows)
    assert set(allowed_ids(rows[0], 257)) == set(b"ab")
    assert set(allowed_ids(rows[1 + len(drafts)], 257)) == {256}
    broken.reset()
    assert broken.failure is None


def _broken(request: RequestMatcher, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a method of the matcher of a request fail, and whatever is done with many matchers at once."""
    usual = getattr(sg.Matcher, method)

    def faulty(matcher: sg.Matcher, *args: object, **kwargs: object) -> object:
        if matcher is request.matcher:
            raise RuntimeError("a fault")
        return usual(matcher, *args, **kwargs)

    def together(*_: object) -> None:
        raise RuntimeError("a fault of one of them")

    monkeypatch.setattr(sg.Matcher, method, faulty)
    monkeypatch.setattr(request_matcher, "fill_mask_trees", together)
    monkeypatch.setattr(RowBuffer, "fill", together)


@pytest.mark.parametrize("drafts", [[], [1, 2]])
@pytest.mark.parametrize("method", ["accept", "fill_mask", "completes_within"])
def test_an_exception_of_a_matcher_ends_its_own_answer(
    method: str, drafts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: the rows of others in its batch are as without it, and its own allow only EOS from then on."""
    broken, other, rows = _request(3), _request(3), empty_masks(8, 2 * (1 + len(drafts)))
    fill_rows([broken, other], [drafts, drafts] if drafts else [], rows)
    expected = rows.copy()
    _broken(broken, method, monkeypatch)
    rows[:] = 0
    fill_rows([broken, other], [drafts, drafts] if drafts else [], rows)
    own = 1 + len(drafts)
    assert np.array_equal(rows[own:], expected[own:])
    if method == "completes_within":
        assert not broken.limit_to(3)
    assert not broken.accept([1])
    assert str(broken.failure) == "a fault"
    broken.fill(rows, 0)
    assert set(allowed_ids(rows[0], 8)) == {EOS}
    assert broken.validate([1]) == broken.drafts([1], 4) == []
    assert other.accept([1])
    assert other.failure is None


def test_looking_for_limits_leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that were taken for a moment are taken back, also where a matcher meets an error after them."""
    request = _request(5)

    def faulty(matcher: sg.Matcher, budget: int) -> bool:
        if matcher.history_length == 2:
            raise RuntimeError("a fault")
        return budget < 0

    monkeypatch.setattr(sg.Matcher, "needs_budget_mask", faulty)
    with pytest.raises(RuntimeError, match="a fault"):
        request.is_tight([1, 2, 1])
    assert request.taken == 0


def test_too_few_rows_are_no_error_of_a_matcher() -> None:
    """They are the caller's, and no answer fails."""
    request = _request()
    with pytest.raises(IndexError, match="3 rows of a bitmask that has 2"):
        fill_rows([request], [[1, 2]], empty_masks(8, 2))
    assert request.failure is None
