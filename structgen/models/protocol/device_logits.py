"""Logits that stay on the model's device: what is queried there, and what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

from structgen.models.protocol.language import Logits, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from structgen.models.protocol.tree import TokenTree

__all__ = [
    "LogitsQuery",
    "ResidentLogits",
    "ResidentSession",
    "SampleAnswer",
    "SampleQuery",
    "SamplingParams",
    "ScoreQuery",
]


class SamplingParams(NamedTuple):
    """What is made of a law before a token is drawn from it: see ``structgen.decode.step.sampler.Multinomial``.

    Attributes:
        temperature: logits are divided by it; 0 takes the most probable token, of equal ones that with the lowest id.
        top_k: only so many most probable tokens; None is all.
        top_p: only the fewest most probable tokens that have at least this probability together; None is all.
        min_p: only tokens with at least so many times the probability of the most probable one; None is all.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


class SampleQuery(NamedTuple):
    """A question to a row of logits: which token is taken of those that a mask allows?

    Attributes:
        row: which.
        mask: int32 words in the machine's order, ``ceil(size / 32)`` of them: bit ``i & 31`` of word ``i >> 5`` stands
            for token ``i``.
        shape: what the token is drawn from.
        uniform: in [0, 1): the token is the first at which the running sum of the shaped law, in the order of ids,
            exceeds it; without a meaning where the temperature is 0.
    """

    row: int
    mask: bytes
    shape: SamplingParams
    uniform: float = 0.0


class ScoreQuery(NamedTuple):
    """A question to a row of logits: how probable is a token?  As ``Choosing`` where it alone is allowed.

    Attributes:
        row: which.
        token: its id.
    """

    row: int
    token: int


LogitsQuery: TypeAlias = "SampleQuery | ScoreQuery"
"""What a row of logits can be asked."""


class SampleAnswer(NamedTuple):
    """What a row of logits answered; sums are in float32.

    Attributes:
        token: the id; -1 where none of the allowed tokens is possible.
        log_p: its log-probability among the allowed ones, before shaping.
        log_z: log of the probability of all allowed ones together; minus infinity where there is none.
        is_finite: whether the row is a law: without NaN, and without plus infinity.
    """

    token: int
    log_p: float
    log_z: float
    is_finite: bool


@runtime_checkable
class ResidentLogits(Protocol):
    """The logits of one forward pass where the model made them, ``[n, size]``; only answers leave that place.

    They outlive the pass: later passes do not change them.  An answer is remembered, so to ask again costs nothing.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""

    def was_run(self, row: int, /) -> bool:
        """Whether a row was computed; of one that was not nothing may be asked, and on the host it is NaN."""

    def host(self, row: int, /) -> Logits:
        """Return a row, float32 ``[size]``: copied where it is asked for first, the same array ever after."""

    def foresee(self, questions: Sequence[LogitsQuery], /) -> None:
        """Find the answers to all questions together: one transfer, and one wait for the model."""

    def ask(self, question: LogitsQuery, /) -> SampleAnswer:
        """Return an answer, from what was foreseen where it was."""

    def top(self, rows: Sequence[int], count: int, /) -> tuple[NDArray[np.int64], Logits]:
        """Return the tokens with the largest logits of rows, the largest first, and their logits.

        Returns:
            Token ids and float32 logits, each ``[len(rows), min(count, size)]``; the order of equal ones is left open.
        """

    def arranged(self, rows: Sequence[int], /) -> ResidentLogits:
        """Return the same logits in another order; -1 stands for a row that was not computed."""


@runtime_checkable
class ResidentSession(Session, Protocol):
    """A session whose logits can stay where the model made them; optional."""

    @property
    def is_resident(self) -> bool:
        """Whether that is worth while: a session may have the methods and sit on a model whose logits are at hand."""

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """Do what ``extend``, ``extend_all`` and ``extend_tree`` do, and leave the logits where they are.

        Args:
            token_ids: as for ``extend``.
            all_positions: whether logits are wanted after each of ``token_ids`` or after the last.
            tree: as for ``extend_tree``; only where the session can branch.

        Returns:
            ``len(token_ids)`` rows or one, and one after each token of the tree.

        Raises:
            GenerationError: as these.
        """
