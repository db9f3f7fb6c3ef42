"""Readers of the descriptions in requests: the fields of OpenAI, vLLM and other servers become grammars.

vLLM, SGLang and structgen's own server take the same kinds of descriptions: a JSON Schema, any JSON object, a regex,
choices, a grammar, a structural tag.  Here each becomes a grammar, for ``structgen serve`` and for the plug-ins.

Sources: vLLM 0.32, ``vllm/sampling_params.py`` and ``vllm/v1/structured_output/utils.py``; SGLang,
``docs/advanced_features/structured_outputs.md``; llama.cpp, ``tools/server/README.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, final

from structgen.errors import StructgenError
from structgen.frontends.bnf import ebnf, gbnf
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.frontends.structural_tag import structural_tag
from structgen.grammar.analysis import Nullability, resolve
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import choice

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = [
    "ANY_OBJECT",
    "Read",
    "Reading",
    "WireError",
    "is_lark",
    "located",
    "only",
    "policy_and_limits",
    "some_text",
    "space_policy",
    "structured_outputs",
    "wrong",
]

ANY_OBJECT: Final = {"type": "object"}
_POINTER: Final = re.compile(r"#/\S*")
_COMMENT: Final = re.compile(r"(#|//).*$")
_LLGUIDANCE: Final = "%llguidance"
_START: Final = re.compile(r"^\s*[?!]?([a-z_][a-z0-9_]*)\s*(?:\[[^\]]*\]\s*|\.\d+\s*)?:(?!:=)", re.MULTILINE)


@final
class WireError(ValueError):
    """A description that cannot be used: it is malformed, or an error of structgen is its cause.

    Attributes:
        place: the field, with the JSON Pointer inside it.
        problem: what is wrong, and what to do.
        cause: the error of structgen, whose message ``problem`` is; None if the field has the wrong type.
    """

    def __init__(self, place: str, problem: str, cause: StructgenError | None = None) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem
        self.cause = cause


def wrong(place: str, problem: str) -> NoReturn:
    """Refuse a value at a place of a request."""
    raise WireError(place, problem)


@contextmanager
def located(place: str) -> Iterator[None]:
    """Let errors of a front end name their place in a field of the request, with the JSON Pointer inside it."""
    try:
        yield
    except WireError:
        raise
    except StructgenError as error:
        raise WireError(place + _pointer_of(error), str(error), error) from error
    except ValueError as error:
        wrong(place, str(error))


def _pointer_of(error: StructgenError) -> str:
    """The JSON Pointer that an error or its cause names."""
    causes = [error, error.__cause__]
    subjects = [each.subject for each in causes if isinstance(each, StructgenError)]
    return next((found[0] for subject in subjects if (found := _POINTER.search(subject))), "")


def only(place: str, value: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Refuse members that are not known."""
    for name in value:
        if name not in known:
            wrong(f"{place}.{name}", f"this field is not supported; there are {', '.join(sorted(known))}")


_DEFAULT: Final = JsonPolicy()
Read: TypeAlias = tuple[str, str, "Grammar"]
"""The kind of a description (``"json"`` or ``"grammar"``), its place in the request, and its grammar."""


@final
@dataclass(frozen=True, slots=True)
class Reading:
    """How descriptions are read.

    Attributes:
        limits: bounds on them.
        policy: how JSON is written.
    """

    limits: Limits
    policy: JsonPolicy = _DEFAULT

    def schema(self, place: str, value: object) -> Read:
        """A JSON Schema, as an object or as text."""
        if not isinstance(value, (dict, bool, str)):
            wrong(place, "expected a JSON Schema, as an object or as text")
        with located(place):
            return "json", place, json_schema(value, policy=self.policy, limits=self.limits)

    def any_object(self, place: str) -> Read:
        """Any JSON object."""
        policy = replace(self.policy, additional="written")
        with located(place):
            return "json", place, json_schema(ANY_OBJECT, policy=policy, limits=self.limits)

    def flag(self, place: str, value: object) -> Read:
        """Any JSON object, if the value is true."""
        return self.any_object(place) if value is True else wrong(place, "expected true or false")

    def pattern(self, place: str, value: object) -> Read:
        """A regular expression, in the dialect of ECMA-262, whose ``.`` is any character."""
        text = some_text(place, value)
        with located(place):  # as the regexes of structural tags, which the same servers read
            return "grammar", place, regex(text, dialect="ecma", flags="s", limits=self.limits)

    def choices(self, place: str, value: object) -> Read:
        """One of some texts."""
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            wrong(place, "expected a list of one or more texts")
        with located(place):
            return "grammar", place, choice(*dict.fromkeys(value))

    def ebnf(self, place: str, value: object) -> Read:
        """EBNF as xgrammar has it."""
        text = some_text(place, value)
        with located(place):
            return "grammar", place, ebnf(text, limits=self.limits)

    def gbnf(self, place: str, value: object) -> Read:
        """GBNF as llama.cpp has it, or Lark after ``%llguidance``."""
        text = some_text(place, value)
        if text.lstrip().startswith(_LLGUIDANCE):
            return self.lark(place, text)
        with located(place):
            return "grammar", place, gbnf(text, limits=self.limits)

    def lark(self, place: str, text: str) -> Read:
        """A Lark grammar; its start is ``start``, else its first rule."""
        names = _START.findall(text)
        start = "start" if "start" in names or not names else names[0]
        with located(place):
            return "grammar", place, lark(text, start=start, limits=self.limits)

    def ebnf_or_lark(self, place: str, value: object) -> Read:
        """A grammar, in one of two syntaxes, which are distinguished as by vLLM."""
        text = some_text(place, value)
        return self.lark(place, text) if is_lark(text) else self.ebnf(place, text)

    def tag(self, place: str, value: object) -> Read:
        """A structural tag, in the new or the legacy form."""
        if not isinstance(value, (dict, str)):
            wrong(place, "expected a structural tag, as an object or as text")
        with located(place):
            return "grammar", place, structural_tag(value, policy=self.policy, limits=self.limits)


def is_lark(text: str) -> bool:
    """Whether vLLM reads a grammar as Lark: no line has ``::=`` before its comment.

    >>> is_lark('start: "a"  // not ::='), is_lark('root ::= "a"')
    (True, False)
    """
    return not any("::=" in _COMMENT.sub("", line) for line in text.split("\n"))


_KINDS: Final[Mapping[str, Callable[[Reading, str, Any], Read]]] = {
    "json": Reading.schema,
    "regex": Reading.pattern,
    "choice": Reading.choices,
    "grammar": Reading.ebnf_or_lark,
    "json_object": Reading.flag,
    "structural_tag": Reading.tag,
}
_OPTIONS: Final = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def structured_outputs(reading: Reading, field: str, value: Any) -> Read:
    """The field ``structured_outputs`` of vLLM: one description, and options of JSON."""
    only(field, value, {*_KINDS, *_OPTIONS})
    given = [name for name in _KINDS if value.get(name) is not None and (name, value[name]) != ("json_object", False)]
    if len(given) != 1:
        said = " and ".join(f"{field}.{name}" for name in given) or "none"
        wrong(f"{field}.{given[1]}" if given else field, f"expected one of {', '.join(_KINDS)}; found {said}")
    (name,) = given
    for option in _OPTIONS[:2]:
        if not isinstance(value.get(option), (bool, type(None))):
            wrong(f"{field}.{option}", "expected true or false")
    is_set = [option for option in _OPTIONS if value.get(option)]
    if is_set and name not in ("json", "json_object"):
        wrong(f"{field}.{is_set[0]}", f"it concerns JSON, and the description is {field}.{name}")
    if "disable_additional_properties" in is_set and name == "json_object":
        wrong(f"{field}.disable_additional_properties", "json_object declares no members, so none could be written")
    if "disable_any_whitespace" in is_set:
        reading = replace(reading, policy=replace(reading.policy, whitespace="compact"))
    if "disable_additional_properties" in is_set:
        reading = replace(reading, policy=replace(reading.policy, additional="forbidden"))
    space = value.get("whitespace_pattern")
    if space is not None:
        if "disable_any_whitespace" in is_set:
            wrong(f"{field}.whitespace_pattern", "disable_any_whitespace is true beside it; leave one of them out")
        reading = replace(reading, policy=space_policy(f"{field}.whitespace_pattern", space))
    return _KINDS[name](reading, f"{field}.{name}", value[name])


def space_policy(place: str, space: object) -> JsonPolicy:
    """The policy with a pattern for white space."""
    if not isinstance(space, str):
        wrong(place, "expected a regular expression")
    with located(place):
        flat = resolve(regex(space, dialect="rust"), through_shared=True)
        if not Nullability(dict(flat.rules))(flat.body):
            wrong(place, "white space that must stand there is not supported; let the pattern match the empty text too")
        return JsonPolicy(space=space)


def policy_and_limits(place: str, given: object, policy: JsonPolicy = _DEFAULT) -> tuple[JsonPolicy, Limits]:
    """The options of a plug-in: fields of ``JsonPolicy``, and in ``limits`` those of ``Limits``.

    Args:
        place: their position in the request, for messages.
        given: the options.
        policy: what holds where they say nothing; bounds are then those of ``Limits.strict()``.

    Raises:
        ValueError: there is no such option, or its value is wrong.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{place}: expected an object; found {given!r:.60}")
    policies, bounds = {each.name for each in fields(JsonPolicy)}, {each.name for each in fields(Limits)}
    limits = given.get("limits", {})
    if not isinstance(limits, Mapping):
        raise ValueError(f"{place}.limits: expected an object; found {limits!r:.60}")
    unknown = [name for name in given if name not in policies | {"limits"}]
    unknown += [f"limits.{name}" for name in limits if name not in bounds]
    if unknown:
        raise ValueError(
            f"{place}.{unknown[0]}: there is no such option; "
            f"there are {', '.join(sorted(policies))}, and in limits {', '.join(sorted(bounds))}"
        )
    try:
        policy = replace(policy, **{name: value for name, value in given.items() if name != "limits"})
        return policy, replace(Limits.strict(), **limits)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def some_text(place: str, value: object) -> str:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else wrong(place, "expected a text that is not empty")
