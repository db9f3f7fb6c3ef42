"""Every exception that structgen raises on purpose.

::

    StructgenError
    ├── GrammarError (ValueError)              the description of the language is at fault
    │   ├── GrammarSyntaxError                 it does not parse; has the text and the span
    │   ├── UnsupportedFeature                 a named keyword or construct is refused
    │   └── UnsatisfiableGrammar               no string matches
    ├── LimitExceeded (ValueError)             a counted bound of ``Limits`` was reached
    ├── VocabularyError (ValueError)           the tokens are malformed or cannot spell the language
    ├── ModelError (RuntimeError)              a model cannot be found, fetched or loaded
    ├── GenerationError (RuntimeError)         decoding cannot continue
    │   ├── BudgetError                        the token budget is below the shortest valid output
    │   ├── AnswerCut                          the token budget decided a part of an answer
    │   └── ValidationFailed                   the checks of a program refuse every value tried
    ├── ArgumentError (TypeError)              an argument has the wrong type
    └── ProgramError (TypeError)               a program is written or called wrongly

A message reads ``<subject>: <what is wrong>; <evidence>; <what to do>``.  The parts are attributes too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self

__all__ = [
    "AnswerCut",
    "ArgumentError",
    "BudgetError",
    "CutWarning",
    "DraftWarning",
    "GenerationError",
    "GrammarError",
    "GrammarSyntaxError",
    "KeywordWarning",
    "LimitExceeded",
    "ModelError",
    "ProgramError",
    "StructgenError",
    "UnsatisfiableGrammar",
    "UnsupportedFeature",
    "ValidationFailed",
    "VocabularyError",
]


class StructgenError(Exception):
    """Base of all errors of this package.

    Attributes:
        subject: the object at fault, for instance ``"regex"`` or ``"json schema #/properties/a"``.
        problem: what is wrong with it.
        evidence: what was found, or ``""``.
        remedy: what to do about it, or ``""``.
    """

    def __init__(self, subject: str, problem: str, *, evidence: str = "", remedy: str = "") -> None:
        self.subject = subject
        self.problem = problem
        self.evidence = evidence
        self.remedy = remedy
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.problem, self.evidence, self.remedy]
        return f"{self.subject}: " + "; ".join(part for part in parts if part)

    def __str__(self) -> str:
        return self._message()

    def __reduce__(self) -> tuple[Callable[..., StructgenError], tuple[Any, ...]]:
        """The error travels, whatever it holds: what can't be pickled is None there, as a note says."""
        held = {name: _packed(value) for name, value in {**self.__dict__, "__cause__": self.__cause__}.items()}
        return _unpacked, (type(self), self.args, held)

    def __copy__(self) -> StructgenError:
        return _made(type(self), self.args, {**self.__dict__, "__cause__": self.__cause__})

    def __deepcopy__(self, memo: dict[int, Any]) -> StructgenError:
        return _made(type(self), self.args, {**copy.deepcopy(self.__dict__, memo), "__cause__": self.__cause__})


def _made(kind: type[StructgenError], args: tuple[Any, ...], held: dict[str, Any]) -> StructgenError:
    error = kind.__new__(kind, *args)
    error.__cause__ = held.pop("__cause__")
    error.__dict__.update(held)
    return error


def _packed(value: object) -> bytes | None:
    """Pickle a value by itself, so that one which can't be pickled, or unpickled, leaves the others whole."""
    import pickle  # for errors that travel only

    try:
        return pickle.dumps(value)
    except Exception:
        return None


def _unpacked(kind: type[StructgenError], args: tuple[Any, ...], packed: dict[str, bytes | None]) -> StructgenError:
    import pickle

    held: dict[str, Any] = dict.fromkeys(packed)
    lost = []
    for name, value in packed.items():
        try:
            held[name] = pickle.loads(value or b"")
        except Exception:
            lost.append(name)
    if lost:
        held["__notes__"] = [*(held.get("__notes__") or ()), f"it can't be pickled: {', '.join(lost)}"]
    return _made(kind, args, held)


class GrammarError(StructgenError, ValueError):
    """The description of the language is at fault."""


class GrammarSyntaxError(GrammarError):
    """A regex, schema or grammar text does not parse.

    Attributes:
        text: the whole source text.
        span: half-open interval of character offsets into ``text``.
    """

    def __init__(self, subject: str, problem: str, *, text: str, span: tuple[int, int], remedy: str = "") -> None:
        self.text = text
        self.span = span
        super().__init__(subject, problem, remedy=remedy)

    def _message(self) -> str:
        return f"{super()._message()}\n{caret(self.text, self.span)}"


class UnsupportedFeature(GrammarError):
    """A keyword or construct is refused by name rather than ignored.

    Attributes:
        feature: the keyword or construct.
        where: JSON Pointer (``#/...``), ``line:column`` or character offset.
    """

    def __init__(self, subject: str, feature: str, *, where: str, problem: str, remedy: str = "") -> None:
        self.feature = feature
        self.where = where
        super().__init__(subject, problem, remedy=remedy)


class UnsatisfiableGrammar(GrammarError):
    """No string matches the grammar."""


class LimitExceeded(StructgenError, ValueError):
    """A counted bound was reached.

    Attributes:
        limit: the name of the field of ``Limits``, or of the argument.
        maximum: its value.
        text: what was written before, where it ended an output, which is not complete then; None elsewhere.
        tokens: the tokens of that.
        rows: the rows that ``fill_masks`` could not fill, ascending.
    """

    text: str | None = None
    tokens: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def __init__(self, subject: str, *, limit: str, maximum: int, evidence: str = "", remedy: str = "") -> None:
        self.limit = limit
        self.maximum = maximum
        super().__init__(
            subject,
            f"more than {limit}={maximum} would be needed",
            evidence=evidence,
            remedy=remedy or f"simplify the input or raise Limits({limit}=...)",
        )

    def ended(self, data: bytes, tokens: Iterable[int]) -> Self:
        """Note the output that it ended, if none is noted yet, and return the error."""
        if self.text is None:
            self.text, self.tokens = data.decode("utf-8", "replace"), tuple(tokens)
            place = f"after {number_of(len(self.tokens), 'token')} of the output, {self.text[-40:]!r}"
            self.evidence = f"{self.evidence}, {place}" if self.evidence else place
        return self


class VocabularyError(StructgenError, ValueError):
    """Tokens are malformed, unknown, or cannot spell what the language needs."""


class ModelError(StructgenError, RuntimeError):
    """A model cannot be found, fetched, checked or loaded."""


class GenerationError(StructgenError, RuntimeError):
    """Decoding cannot continue."""


class BudgetError(GenerationError):
    """``max_tokens``, or the slots of a canvas, are fewer than the shortest valid output needs.

    Attributes:
        budget: the tokens that were allowed.
        needed: the tokens of the shortest known output.
    """

    def __init__(self, *, budget: int, needed: int, evidence: str = "", name: str = "max_tokens") -> None:
        self.budget = budget
        self.needed = needed
        super().__init__(
            f"{name}={budget}",
            f"the shortest output that satisfies the grammar takes {number_of(needed, 'token')}",
            evidence=evidence,
            remedy=f"allow at least {name}={needed}",
        )


class AnswerCut(GenerationError):
    """The budget decided a part of an answer, and ``on_cut`` says that such an answer is an error.

    Attributes:
        budget: the tokens that the answer was allowed.
        outcome: the answer with its marks: a ``structgen.program.Outcome``.
    """

    def __init__(self, budget: int, outcome: Any) -> None:
        self.budget = budget
        self.outcome = outcome
        cut = [each.name for each in outcome.fields if each.is_cut and each.path]
        super().__init__(
            f"max_tokens={budget}",
            "the budget cut the answer: with more tokens the model would have written something else",
            evidence=f"cut are {', '.join(cut[:8])}{' ...' if len(cut) > 8 else ''}" if cut else "",
            remedy="allow more tokens, or take on_cut='continue', or on_cut='mark' and look at run.cut_fields",
        )


class CutWarning(UserWarning):
    """The budget decided a part of a value that a program returned: see ``Run.finish_reason``."""


class ValidationFailed(GenerationError):
    """Every value tried violates a check that no grammar can express.

    Attributes:
        place: the field, ``""`` for the whole value.
        violations: the values tried, as text, each with its problem.
    """

    def __init__(self, place: str, violations: Sequence[tuple[str, str]]) -> None:
        self.place = place
        self.violations = tuple(violations)
        text, problem = self.violations[-1]
        super().__init__(
            f"field {place!r}" if place else "the answer",
            f"its checks refuse all {len(self.violations)} values that were tried",
            evidence=f"the last is {text!r}: {problem}",
            remedy="allow more tries, loosen the check, or say in the type or the prompt what it wants",
        )


class ArgumentError(StructgenError, TypeError):
    """An argument has the wrong type: a model's name instead of the model."""


class ProgramError(StructgenError, TypeError):
    """A program is written or called wrongly: its annotations, its template, what it yields, its arguments."""


def found(value: object) -> str:
    """Name a value of the wrong kind for a sentence: small ones as they are, others by their type."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"found {shown(value)}"
    if value is None or isinstance(value, (bool, float)):
        return f"found {value!r}"
    if isinstance(value, str):
        return f"found the text {value!r:.60}"
    if isinstance(value, bytes):
        return "found bytes"
    if isinstance(value, type):
        return f"found the type {value.__name__}"
    name = type(value).__name__
    return f"found {'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def shown(number: int) -> str:
    """Write a number for a sentence, one of very many digits by its size: Python refuses to write these."""
    return str(number) if number.bit_length() <= 200 else f"a number of {number.bit_length()} bits"


def number_of(number: int, noun: str) -> str:
    """A number of things, for a sentence: ``1 token``, ``2 tokens``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def meant(name: object, known: Iterable[str]) -> str:
    """Ask for the known name that a misspelt one resembles; empty if there is none."""
    from difflib import get_close_matches  # for errors only

    alike = get_close_matches(str(name), list(known), n=1)
    return f"is {alike[0]!r} meant?" if alike else ""


def install(extra: str) -> str:
    """The command that installs the libraries of an extra."""
    return f"pip install 'structgen-lm[{extra}]'"


def some(values: Iterable[object], most: int = 8) -> str:
    """Write the first ``most`` values, and how many more there are, for a sentence."""
    listed = list(values)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(repr, listed[:most])) + more


def error_values(error: StructgenError) -> dict[str, object]:
    """The error as JSON values: its kind, its message, and what it names."""
    names = ("feature", "where", "span", "limit", "maximum")
    named = {name: getattr(error, name) for name in names if hasattr(error, name)}
    return {"kind": type(error).__name__, "message": str(error), **named}


_WIDTH: Final = 72
"""Characters of a line in an error."""


def caret(text: str, span: tuple[int, int]) -> str:
    """Draw the line of ``text`` that holds ``span`` with carets under it.

    Lines longer than 72 characters are cut around the span, marked by ``...``.
    """
    start, end = max(0, min(span[0], len(text))), max(0, min(span[1], len(text)))
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    column = start - line_start
    length = max(1, min(end, line_start + len(line)) - start)
    prefix = ""
    if len(line) > _WIDTH:
        cut = max(0, column - _WIDTH // 2)
        prefix = "..." if cut else ""
        tail = "..." if cut + _WIDTH < len(line) else ""
        line, column = prefix + line[cut : cut + _WIDTH] + tail, column - cut + len(prefix)
        length = min(length, max(1, len(line) - len(tail) - column))
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return f"    {shown}\n    {' ' * column}{'^' * length}"


class KeywordWarning(UserWarning):
    """A JSON Schema has a name that resembles a keyword and is none, so that it constrains nothing."""


class DraftWarning(UserWarning):
    """A drafter failed and is no longer used; the output is not affected."""
