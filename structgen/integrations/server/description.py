"""What a request asks for, as a grammar: the descriptions of OpenAI, vLLM, SGLang, llama-server and Ollama.

Each field that describes the answer is read or refused by name, and an answer has one description.  Errors name the
place in the field of the client.

Sources: OpenAI's API reference; vLLM 0.33, ``vllm/sampling_params.py`` and ``vllm/v1/structured_output/utils.py``, and
the fields that 0.12 removed; SGLang, ``docs/advanced_features/structured_outputs.md``; llama.cpp,
``tools/server/README.md``; Ollama, ``docs/api.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final

from structgen.errors import StructgenError
from structgen.frontends.bnf import ebnf, gbnf
from structgen.frontends.free_text import any_text
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.frontends.structural_tag import structural_tag
from structgen.grammar.analysis import Nullability, resolve
from structgen.grammar.nodes import choice
from structgen.grammar.nodes.description import Described
from structgen.integrations.server.protocol import api_error, wrong

if TYPE_CHECKING:
    from structgen.decode.step.result import Result
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.protocol import ChatRequest

__all__ = ["Description", "described", "is_lark", "located", "only", "text_grammar"]

ANY_OBJECT: Final = {"type": "object"}
_POINTER: Final = re.compile(r"#/\S*")
_COMMENT: Final = re.compile(r"(#|//).*$")
_LLGUIDANCE: Final = "%llguidance"
_START: Final = re.compile(r"^\s*[?!]?([a-z_][a-z0-9_]*)\s*(?:\[[^\]]*\]\s*|\.\d+\s*)?:(?!:=)", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class Description:
    """What an answer may be.

    Attributes:
        grammar: all answers.
        kind: ``"text"``, ``"json"``, ``"grammar"`` or ``"tools"``.
        source: the field of the request that says so; None for free text.
        parts: the grammars of its descriptions, by their places in the request.
    """

    grammar: Grammar
    kind: str
    source: str | None
    parts: tuple[tuple[str, Grammar], ...] = ()

    def finish_reason(self, result: Result) -> str:
        """``"length"`` if free text was cut.  Others are complete, and clients raise where they read this word."""
        return "stop" if self.kind in ("json", "grammar") else result.finish_reason

    def counts(self) -> dict[str, int]:
        """How many keywords and constructs are enforced, checked, or annotations."""
        found: dict[str, int] = {}
        for _, grammar in self.parts:
            for entry in grammar.description.entries if isinstance(grammar, Described) else ():
                found[entry.status.value] = found.get(entry.status.value, 0) + 1
        return found

    @property
    def header(self) -> str:
        """The kind and the counts, on one line."""
        return "; ".join([self.kind, *(f"{status}={count}" for status, count in self.counts().items())])

    def report_for(self, request: ChatRequest) -> dict[str, Any]:
        """The member ``report`` of a response, if the request wants it."""
        return {"report": self.report()} if request.structgen is not None and request.structgen.report else {}

    def report(self) -> dict[str, Any]:
        """What is enforced, and how, as JSON: one entry for each keyword or construct of each description."""
        parts = [(place, grammar.description) for place, grammar in self.parts if isinstance(grammar, Described)]
        entries = [
            {
                "field": place,
                "keyword": entry.keyword,
                "where": entry.where,
                "status": entry.status.value,
                **({"detail": entry.detail} if entry.detail else {}),
            }
            for place, description in parts
            for entry in description.entries
        ]
        policies = {name: value for _, description in parts for name, value in description.policies}
        return {
            "kind": self.kind,
            "source": self.source,
            "counts": self.counts(),
            "entries": entries,
            "policies": policies,
        }


def described(request: ChatRequest, limits: Limits, policy: JsonPolicy | None = None) -> Description:
    """Return what the answer to a request may be; ``policy`` is how JSON is written where the request says nothing.

    Raises:
        APIError: the description is malformed or cannot be enforced, or there are two.
    """
    given = [name for name in _FIELDS if not _says_nothing(name, getattr(request, name))]
    if len(given) > 1:
        wrong(given[1], f"the answer is described twice, by {given[0]} and by {given[1]}; leave one of them out")
    space = request.guided_whitespace_pattern
    if space is not None and given not in (["guided_json"], ["guided_json_object"]):
        wrong("guided_whitespace_pattern", "it needs guided_json beside it")
    if not given:
        return Description(any_text(), "text", None)
    (field,) = given
    policy = (policy or _DEFAULT) if space is None else _policy("guided_whitespace_pattern", space)
    kind, place, grammar = _FIELDS[field](_Reading(limits, policy), field, getattr(request, field))
    return Description(grammar, kind, field, ((place, grammar),))


def text_grammar(syntax: str, place: str, value: object, limits: Limits) -> Grammar:
    """The texts of a definition in the syntax ``"lark"`` or ``"regex"``, which is that of Rust.

    Raises:
        APIError: it is malformed, or cannot be enforced.
    """
    text = _text(place, value)
    if syntax == "lark":
        return _Reading(limits).lark(place, text)[2]
    with located(place):
        return regex(text, dialect="rust", limits=limits)


def _says_nothing(name: str, value: object) -> bool:
    """Whether a field is left out, as far as clients are concerned."""
    if name == "response_format" and isinstance(value, dict) and value.get("type") == "text":
        return not (value.keys() - {"type"})
    return value is None or (name == "grammar" and value == "") or (name == "guided_json_object" and value is False)


_DEFAULT: Final = JsonPolicy()
_Read = tuple[str, str, "Grammar"]


@final
@dataclass(frozen=True, slots=True)
class _Reading:
    """How descriptions are read.

    Attributes:
        limits: bounds on them.
        policy: how JSON is written.
    """

    limits: Limits
    policy: JsonPolicy = _DEFAULT

    def schema(self, place: str, value: object) -> _Read:
        if not isinstance(value, (dict, bool, str)):
            wrong(place, "expected a JSON Schema, as an object or as text")
        with located(place):
            return "json", place, json_schema(value, policy=self.policy, limits=self.limits)

    def any_object(self, place: str) -> _Read:
        policy = replace(self.policy, additional="written")
        with located(place):
            return "json", place, json_schema(ANY_OBJECT, policy=policy, limits=self.limits)

    def flag(self, place: str, value: object) -> _Read:
        return self.any_object(place) if value is True else wrong(place, "expected true or false")

    def pattern(self, place: str, value: object) -> _Read:
        text = _text(place, value)
        with located(place):  # as the regexes of structural tags, which the same servers read
            return "grammar", place, regex(text, dialect="ecma", flags="s", limits=self.limits)

    def choices(self, place: str, value: object) -> _Read:
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            wrong(place, "expected a list of one or more texts")
        with located(place):
            return "grammar", place, choice(*dict.fromkeys(value))

    def ebnf(self, place: str, value: object) -> _Read:
        text = _text(place, value)
        with located(place):
            return "grammar", place, ebnf(text, limits=self.limits)

    def gbnf(self, place: str, value: object) -> _Read:
        text = _text(place, value)
        if text.lstrip().startswith(_LLGUIDANCE):
            return self.lark(place, text)
        with located(place):
            return "grammar", place, gbnf(text, limits=self.limits)

    def lark(self, place: str, text: str) -> _Read:
        names = _START.findall(text)
        start = "start" if "start" in names or not names else names[0]
        with located(place):
            return "grammar", place, lark(text, start=start, limits=self.limits)

    def ebnf_or_lark(self, place: str, value: object) -> _Read:
        text = _text(place, value)
        return self.lark(place, text) if is_lark(text) else self.ebnf(place, text)

    def tag(self, place: str, value: object) -> _Read:
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


def _response_format(reading: _Reading, field: str, value: Any) -> _Read:
    match value.get("type"):
        case "text":
            only(field, value, {"type"})
        case "json_object":
            only(field, value, {"type", "schema"})  # llama-server has the schema here
            is_any = value.get("schema") is None
            return reading.any_object(field) if is_any else reading.schema(f"{field}.schema", value["schema"])
        case "json_schema":
            return _named_schema(reading, field, value)
        case "structural_tag":
            return reading.tag(field, value)
    return wrong(
        f"{field}.type",
        f"expected 'text', 'json_object', 'json_schema' or 'structural_tag'; found {value.get('type')!r:.60}",
    )


def _named_schema(reading: _Reading, field: str, value: Any) -> _Read:
    """``strict`` makes no difference: a schema is always enforced."""
    if "schema" in value:  # as llama-server has it
        only(field, value, {"type", "schema"})
        return reading.schema(f"{field}.schema", value["schema"])
    only(field, value, {"type", "json_schema"})
    held, place = value.get("json_schema"), f"{field}.json_schema"
    if not isinstance(held, dict) or held.get("schema") is None:
        wrong(place, "expected an object with 'name' and 'schema'")
    only(place, held, {"name", "description", "schema", "strict"})
    if not isinstance(held.get("strict"), (bool, type(None))):
        wrong(f"{place}.strict", "expected true or false")
    return reading.schema(f"{place}.schema", held["schema"])


_KINDS: Final[Mapping[str, Callable[[_Reading, str, Any], _Read]]] = {
    "json": _Reading.schema,
    "regex": _Reading.pattern,
    "choice": _Reading.choices,
    "grammar": _Reading.ebnf_or_lark,
    "json_object": _Reading.flag,
    "structural_tag": _Reading.tag,
}
_OPTIONS: Final = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def _structured_outputs(reading: _Reading, field: str, value: Any) -> _Read:
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
    space = value.get("whitespace_pattern")
    if space is not None:
        if "disable_any_whitespace" in is_set:
            wrong(f"{field}.whitespace_pattern", "disable_any_whitespace is true beside it; leave one of them out")
        reading = replace(reading, policy=_policy(f"{field}.whitespace_pattern", space))
    return _KINDS[name](reading, f"{field}.{name}", value[name])


def _policy(place: str, space: object) -> JsonPolicy:
    """The policy with a pattern for white space."""
    if not isinstance(space, str):
        wrong(place, "expected a regular expression")
    with located(place):
        flat = resolve(regex(space, dialect="rust"), through_shared=True)
        if not Nullability(dict(flat.rules))(flat.body):
            wrong(place, "white space that must stand there is not supported; let the pattern match the empty text too")
        return JsonPolicy(space=space)


def _format(reading: _Reading, field: str, value: Any) -> _Read:
    if value == "json":
        return reading.any_object(field)
    if not isinstance(value, dict):
        wrong(field, "expected 'json' or a JSON Schema")
    return reading.schema(field, value)


_FIELDS: Final[Mapping[str, Callable[[_Reading, str, Any], _Read]]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": _Reading.schema,
    "guided_json_object": _Reading.flag,
    "guided_regex": _Reading.pattern,
    "guided_choice": _Reading.choices,
    "guided_grammar": _Reading.ebnf_or_lark,
    "structural_tag": _Reading.tag,
    "regex": _Reading.pattern,
    "ebnf": _Reading.ebnf,
    "json_schema": _Reading.schema,
    "grammar": _Reading.gbnf,
    "format": _format,
}
"""The fields that describe an answer, and how each is read."""


@contextmanager
def located(place: str) -> Iterator[None]:
    """Let errors of a front end name their place in a field of the request, with the JSON Pointer inside it."""
    try:
        yield
    except StructgenError as error:
        raise api_error(error, param=place + _pointer_of(error)) from error
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


def _text(place: str, value: object) -> str:
    return value if isinstance(value, str) and value else wrong(place, "expected a text that is not empty")
