"""The masks of a batch in a buffer that stays from one step to the next."""

from __future__ import annotations

from typing import final

from structgen_kernels import _native

from structgen.engine.mask import MaskWords

__all__ = ["RowBuffer"]


@final
class RowBuffer(_native.RowBuffer):
    """Rows of masks; each step writes only what differs from the step before.

    ``RowBuffer(rows)`` takes an int32 array, contiguous, ``[rows, ceil(V / 32)]``.  The row of a matcher is that of
    ``Matcher.fill_mask``, with the budget that ``Matcher.limit`` leaves if it has one; past EOS it allows everything.
    If other code writes to the rows, it must call ``forget()`` before they are filled again.

    ``fill(matchers) -> list[int]`` fills row ``i`` for matcher ``i``, and returns the rows that it cannot fill: those
    whose limit leaves no token, and those that meet a bound of the constraint's limits.  The caller fills these.

    ``fill_owned(owners, keys, matcher_of) -> list[int]`` does so for the owners ``owners[key]``.  ``matcher_of(owner)``
    returns the matcher of one; it is called when a row gets another owner than in the call before.  The owners of the
    last call, and their matchers, are kept alive.

    The GIL is held where all rows are known already, and released where some are made.

    Raises:
        ValueError: the rows have the wrong width.
        IndexError: there are too few rows.
        KeyError: there is no such owner.

    Complexity: a row that is the same as before takes a few look-ups; one that shares all but some 200 tokens with it,
    a few for each of these; else a copy of its words.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: MaskWords) -> None:
        super().__init__(rows)
        self.rows = rows
