"""``structgen.extract``: values of a type out of a document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast

from structgen.errors import ProgramError
from structgen.grammar.limits import Limits
from structgen.program.answer import answer_of
from structgen.program.definition import Program
from structgen.program.describe import description_of
from structgen.program.evidence import SEARCH_LIMIT, quoted
from structgen.program.execution import Settings

if TYPE_CHECKING:
    from structgen.program.events import Event
    from structgen.program.mapping import Mapped
    from structgen.program.run import Run

__all__ = ["Extract", "extract"]

Value = TypeVar("Value")

_INSTRUCTION: Final = "Extract what is asked for from the document."
_QUOTE: Final = " Copy texts from it word for word."
_MAX_TOKENS: Final = 1024
# The shortest output in tokens is looked for among the quotations too, of which there are many; after so many steps
# that of the output which is shortest in bytes will do.
_LIMITS: Final = Limits(distance_steps=10_000)


class Extract(Protocol):
    """The type of ``extract``: a program for any type."""

    def __call__(self, kind: type[Value], document: str, /, **settings: Any) -> Value:
        """Return the value."""

    def run(self, kind: type[Value], document: str, /, **settings: Any) -> Run[Value]:
        """Return the value with all that is known of it; with ``evidence=True`` also where the texts stand."""

    def stream(self, kind: Any, document: str, /, **settings: Any) -> Generator[Event, None, None]:
        """Yield events; the last is ``Done``."""

    def aio(self, kind: type[Value], document: str, /, **settings: Any) -> Coroutine[Any, Any, Value]:
        """Return the value when it is awaited."""

    def astream(self, kind: Any, document: str, /, **settings: Any) -> AsyncIterator[Event]:
        """Yield events asynchronously."""

    def map(self, items: Iterable[tuple[Any, str]], **settings: Any) -> list[Mapped[Any]]:
        """Run for each pair of a type and a document, several at a time: see ``Program.map``."""


def _extract(
    kind: Any,
    document: str,
    /,
    *,
    evidence: bool | Literal["exact"] = False,
    whole_words: bool = True,
    search_limit: int = SEARCH_LIMIT,
    instruction: str | None = None,
) -> Generator[Any, Any, Any]:
    """Extract values of a type from a document.

    Call it as ``extract(Model, document)``, or by ``run``, ``stream``, ``aio`` and ``astream`` as any program.

    Args:
        kind: what to extract: a type, ``list[Model]`` for any number of one.
        document: the text.
        evidence: whether free texts must be quoted from the document; ``extract.run(...).evidence`` then says where
            they stand.  Free is each ``str`` without an enumeration, pattern or format.  A quotation is not empty,
            unless its field says ``min_length=0``.  With ``"exact"`` each quotation is the most probable one under the
            model, not the one that its most probable tokens lead to; that costs more forward passes.
        search_limit: the most beginnings of a quotation that one search for the most probable runs through the model.
        whole_words: whether quotations neither begin nor end with white space or within a word.
        instruction: what to do, in place of the one that is there.

    Beside these, it takes ``model``, ``max_tokens`` (1024 unless said otherwise), ``sampler``, ``seed`` and ``tries``
    as any program.

    Raises:
        ProgramError: the document is no text.
        GrammarError: ``kind`` cannot be written; or what it requires cannot be quoted from the document.
        LimitExceeded: a search did not end within ``search_limit``.
    """
    if not isinstance(document, str):
        raise ProgramError(
            "extract", f"the document is of type {type(document).__name__}", remedy="give its text, decoded"
        )
    if evidence not in (False, True, "exact"):
        raise ValueError(f"evidence is True, False or 'exact'; found {evidence!r:.40}")
    exact = evidence == "exact"
    answer = (
        quoted(kind, document, whole_words=whole_words, exact=exact, search_limit=search_limit)
        if evidence
        else answer_of(kind)
    )
    if instruction is None:
        instruction = _INSTRUCTION + (_QUOTE if evidence else "")
    yield "\n\n".join(part for part in (instruction, document, description_of(answer)) if part)
    return (yield answer)


_extract.__name__ = _extract.__qualname__ = "extract"
extract: Final = cast("Extract", Program(_extract, Settings(max_tokens=_MAX_TOKENS, limits=_LIMITS)))
