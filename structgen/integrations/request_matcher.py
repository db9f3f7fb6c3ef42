"""The grammar of one request inside a server: a matcher, the limit of its answer, and the tokens after its end.

Servers pass several tokens at a time, also EOS and tokens after it; they roll back rejected drafts; and they end an
answer at its limit.  So tokens after the end are accepted without effect, and a row allows only tokens after which the
answer can still be completed within the limit.  Nothing here depends on a particular server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from structgen.engine import fill_mask_trees
from structgen.engine.row_buffer import RowBuffer
from structgen.errors import StructgenError
from structgen.log import logger

if TYPE_CHECKING:
    from structgen.engine import Matcher

__all__ = ["RequestMatcher", "fill_rows"]

ALL = -1
"""Each word of a row that allows everything."""
_MAX_LIMIT: Final = 2**31
"""A larger limit is the same as this one."""


@final
class RequestMatcher:
    """The state of the answer to one request.

    The tokens that end an answer are the EOS ids of the matcher's vocabulary (``Vocabulary.with_eos``).  It belongs to
    one thread at a time.

    Attributes:
        matcher: of the answer.
        failure: the error that ended the answer; no token is accepted after it.
    """

    __slots__ = ("_beyond", "_limit", "failure", "matcher")

    def __init__(self, matcher: Matcher, limit: int | None = None) -> None:
        self.matcher = matcher
        self.limit = limit
        self.failure: Exception | None = None
        self._beyond = 0

    @property
    def limit(self) -> int | None:
        """How many tokens the answer may have in all, EOS not counted; None is no limit."""
        return self._limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        self._limit = self.matcher.limit = None if limit is None else min(limit, _MAX_LIMIT)

    @property
    def is_over(self) -> bool:
        """Whether EOS was accepted: tokens after it are no part of the answer."""
        return self.matcher.is_terminated

    @property
    def taken(self) -> int:
        """How many tokens were accepted, without those past the end."""
        return self.matcher.history_length

    @property
    def left(self) -> int | None:
        """How many tokens the answer may still have, EOS not counted; None is no limit."""
        return None if self.limit is None else max(0, self.limit - self.taken)

    def limit_to(self, left: int) -> bool:
        """Let the answer have at most ``left`` more tokens, EOS not counted.

        Returns:
            Whether it can be completed within them; if not, there is no limit.  False if the answer has failed.
        """
        try:
            is_enough = self.matcher.completes_within(left)
        except Exception as error:
            self._fail(error)
            return False
        self.limit = self.taken + left if is_enough else None
        return is_enough

    def accept(self, tokens: Sequence[int]) -> bool:
        """Take a run of tokens; those after the end have no effect.

        Returns:
            False if one is refused, and the state is as before; or if the answer has failed.
        """
        if self.failure is not None:
            return False
        done = 0
        try:
            for token in tokens:
                if self.matcher.is_terminated:
                    break
                if not self.matcher.accept(token):
                    self.matcher.rollback(done)
                    return False
                done += 1
        except Exception as error:
            self._fail(error)
            self._take_back(done)
            return False
        self._beyond += len(tokens) - done
        return True

    def validate(self, tokens: Sequence[int]) -> list[int]:
        """Return the longest prefix of ``tokens`` that may come next, EOS included; the state stays as it is."""
        if self.failure is not None or self.matcher.is_terminated:
            return []
        size = self.matcher.constraint.vocabulary.size
        known = next((at for at, token in enumerate(tokens) if not 0 <= token < size), len(tokens))
        try:
            return list(tokens[: self.matcher.validate(list(tokens[:known]))])
        except Exception:  # the row of the next token meets it too
            return []

    def drafts(self, drafted: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` draft tokens: what is forced, and what was drafted elsewhere.

        The forced text comes first, in canonical tokens.  The drafts are taken as far as they go on from it, and then
        the text that they force.  The state stays as it is.
        """
        if self.failure is not None or self.matcher.is_terminated or most <= 0:
            return []
        proposals = self.validate(drafted)
        try:
            probe = self.matcher.fork()
            found = self._forced(probe, most)
            if proposals[: len(found)] == found:
                after = proposals[len(found) : most]
                for token in after:
                    probe.accept(token)
                found += after
                found += self._forced(probe, most - len(found))
        except Exception:  # as above
            return proposals[:most]
        left = self.left
        return found if left is None else found[: left + 1]

    @staticmethod
    def _forced(probe: Matcher, most: int) -> list[int]:
        """Up to ``most`` forced tokens, which the probe takes."""
        if most <= 0 or probe.is_terminated:
            return []
        forced = probe.forced_tokens()[:most]
        return forced[: sum(1 for token in forced if probe.accept(token))]

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens that were accepted, those past the end included.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= count <= self._beyond + self.taken:
            raise ValueError(f"rollback: {count} tokens of {self._beyond + self.taken} that were taken")
        past = min(count, self._beyond)
        self._beyond -= past
        self.matcher.rollback(count - past)

    def reset(self) -> None:
        """Go back to the start of the answer."""
        self.matcher.reset()
        self._beyond = 0
        self.failure = None
        self.matcher.limit = self._limit

    def fill(self, bitmask: Any, row: int) -> None:
        """Write the row of the next token.

        Past the end it allows everything.  Where the matcher meets an error, such as a bound of the limits, it allows
        only EOS, and the answer has failed: no further token is accepted.
        """
        try:
            if self.failure is None:
                if self.matcher.is_terminated:
                    bitmask[row] = ALL
                else:
                    self.matcher.fill_mask(bitmask, row, budget=self.left)
                return
        except Exception as error:
            self._fail(error)
        bitmask[row] = 0
        for token in self.matcher.constraint.vocabulary.eos:
            bit = 1 << (token & 31) if token & 31 < 31 else -(1 << 31)
            bitmask[row, token >> 5] = bitmask[row, token >> 5] | bit

    def _fail(self, error: Exception) -> None:
        fault = None if isinstance(error, StructgenError) else error
        logger.error("an answer ends with an error after %d tokens: %s", self.taken, error, exc_info=fault)
        self.failure = error
        self.matcher.limit = 0  # so that no buffer of rows fills its row

    def _take_back(self, count: int) -> None:
        """Roll back the drafts."""
        try:
            self.matcher.rollback(count)
        except Exception as error:
            if self.failure is None:
                self._fail(error)

    def fill_chain(self, drafts: Sequence[int], bitmask: Any, row: int) -> None:
        """Write the row of the next token and the rows after each draft; where one is refused, the last row stands."""
        done, at = 0, row
        self.fill(bitmask, at)
        for token in drafts:
            at += 1
            is_next = done == at - row - 1 and not self.is_over and _allows(bitmask, at - 1, token)
            if is_next and self.accept([token]):
                done += 1
                self.fill(bitmask, at)
            else:
                bitmask[at] = bitmask[at - 1]
        self._take_back(done)

    def is_tight(self, drafts: Sequence[int]) -> bool:
        """Whether some row of a chain depends on the limit."""
        if self.limit is None:
            return False
        done, found = 0, self.matcher.needs_budget_mask(max(0, self.limit - self.taken))
        try:
            for token in drafts:
                if found or self.is_over or not self.matcher.accept(token):
                    break
                done += 1
                found = not self.is_over and self.matcher.needs_budget_mask(max(0, self.limit - self.taken))
        finally:
            self._take_back(done)
        return found


def _allows(bitmask: Any, row: int, token: int) -> bool:
    return bool(int(bitmask[row, token >> 5]) >> (token & 31) & 1)


def fill_rows(requests: Sequence[RequestMatcher], drafts: Sequence[Sequence[int]], bitmask: Any) -> None:
    """Fill the rows of a batch in one call, on all processors, without the GIL.

    Each request has one row for its next token and one after each of its drafts; the rows of the requests follow each
    other.  Rows that depend on a limit are filled again, one by one; all are, if a matcher meets an error.

    Args:
        requests: the requests; one whose answer is over, or has failed, is filled as ``RequestMatcher.fill`` does.
        drafts: the drafts of each; empty if none has any.  Where one is refused, the rows after it are that before it;
            those after EOS allow everything.
        bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.

    Raises:
        IndexError: there are too few rows.
    """
    count = len(requests) + sum(map(len, drafts))
    if count > len(bitmask):
        raise IndexError(f"fill_rows: {count} rows of a bitmask that has {len(bitmask)}")
    if not any(drafts):
        rows: Sequence[int] = range(len(requests))
        try:
            rows = RowBuffer(bitmask).fill([request.matcher for request in requests])
        except Exception as error:
            logger.debug("the rows of a batch are filled one by one: %s", error)
        for row in rows:
            requests[row].fill(bitmask, row)
        return
    again = [True] * len(requests)
    try:
        trees = [(tokens, range(-1, len(tokens) - 1)) for tokens in drafts]
        allowed = fill_mask_trees([request.matcher for request in requests], trees, bitmask)
        again = [
            not all(each) or any(token in request.matcher.constraint.vocabulary.eos for token in tokens)
            for request, tokens, each in zip(requests, drafts, allowed, strict=True)
        ]
    except Exception as error:
        logger.debug("the rows of a batch are filled one by one: %s", error)
    row = 0
    for at, (request, tokens) in enumerate(zip(requests, drafts, strict=True)):
        if again[at] or request.failure is not None or request.is_over or _is_tight(request, tokens):
            request.fill_chain(tokens, bitmask, row)
        row += 1 + len(tokens)


def _is_tight(request: RequestMatcher, tokens: Sequence[int]) -> bool:
    try:
        return request.is_tight(tokens)
    except Exception:  # the walk meets it too
        return True
