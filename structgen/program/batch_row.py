"""The row of one item of a batch, as ``structgen batch`` writes it; in Ray its members are columns."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from structgen.program.outcome import Served
from structgen.program.stream.event import Done
from structgen.program.trace import plain_value

if TYPE_CHECKING:
    from structgen.program.definition import Program
    from structgen.program.execution import AnyModel
    from structgen.program.outcome import Run

__all__ = ["COLUMNS", "error_row", "item_row", "item_seed", "run_row"]

COLUMNS: Final = ("id", "value", "error", "losses", "tokens", "attempt")
"""The members of a row: see ``docs/reference/cli.md``."""

_SEED_BYTES: Final = 7  # below 2**56: any reader of JSON keeps it


def item_seed(seed: int, item: str | int, attempt: int = 1) -> int:
    """Return the seed of an attempt at an item, by the item's id: its place in the input makes no difference."""
    text = json.dumps([seed, item, attempt])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_SEED_BYTES).digest(), "big")


def item_row(  # noqa: PLR0913  what a run has
    program: Program[..., Any],
    item: str | int,
    arguments: Mapping[str, Any],
    *,
    model: AnyModel,
    seed: int | Callable[[int], int],
    attempts: int = 1,
    is_stopped: Callable[[], bool] = lambda: False,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Run a program for an item, until an attempt succeeds, and return its row; whatever goes wrong is in the row.

    Args:
        program: what is run.
        item: its id.
        arguments: of the program.
        model: what it runs on.
        seed: of the first attempt, or what gives that of each.
        attempts: how many there may be.
        is_stopped: called after each event; if true, the row is an error, which nobody reads.
        settings: for ``program.stream``.
    """
    failure: BaseException = InterruptedError("it was not finished")
    attempt = 0
    while attempt < attempts and not is_stopped():
        attempt += 1
        chosen = seed(attempt) if callable(seed) else seed + attempt - 1
        try:
            with contextlib.closing(program.stream(**arguments, **settings, model=model, seed=chosen)) as events:
                for event in events:
                    if isinstance(event, Done):
                        return run_row(item, event.run, attempt)
                    if is_stopped():
                        break
        except (Exception, SystemExit) as error:  # the other items go on
            failure = error
    return error_row(item, failure, attempt)


def run_row(item: str | int, run: Run[Any], attempt: int = 1) -> dict[str, Any]:
    """Return the row of a result."""
    return _row(item, plain_value(run.value), None, _losses(run), _tokens(run), attempt)


def error_row(item: str | int, error: BaseException | str, attempt: int = 1) -> dict[str, Any]:
    """Return the row of a failure, with its kind where that says more than the text."""
    return _row(item, None, error if isinstance(error, str) else _told(error), [], None, attempt)


def _row(*members: Any) -> dict[str, Any]:
    return dict(zip(COLUMNS, members, strict=True))


def _told(error: BaseException) -> str:
    from structgen.errors import StructgenError

    return str(error) if isinstance(error, StructgenError) else f"{type(error).__name__}: {error}"


def _losses(run: Run[Any]) -> list[str]:
    """Possible defects of the value: keywords that a server may not enforce, and parts cut by budget or guard."""
    served = [outcome.result for outcome in run.outcomes if isinstance(outcome.result, Served)]
    found = [str(loss) for result in served for loss in result.losses]
    found += [f"{name}: cut by max_tokens" for name in run.cut_fields]
    if run.finish_reason == "length" and not run.cut_fields:
        found.append("the end of the answer: cut by max_tokens")
    return found + [f"{name or 'the answer'}: {reason}" for name, reason in run.limited.items()]


def _tokens(run: Run[Any]) -> int | None:
    """The tokens of all answers and thoughts; None where a server does not tell."""
    results = [result for outcome in run.outcomes for result in outcome.results()]
    counts = [result.tokens if isinstance(result, Served) else len(result.tokens) for result in results]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
