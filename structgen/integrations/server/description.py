"""The grammar of a request: the descriptions of OpenAI, vLLM, SGLang, llama-server and Ollama.

Each field that describes the answer is read or refused by name, and an answer has one description.  Errors name the
place in the field of the client.

Sources: those of ``wire``; OpenAI's API reference; the fields that vLLM 0.12 removed; Ollama, ``docs/api.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from structgen.frontends.free_text import any_text
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.regex import regex
from structgen.grammar.nodes.description import Described
from structgen.integrations import wire
from structgen.integrations.server.protocol import api_error, wrong as refuse
from structgen.integrations.wire import Reading, WireError, some_text, space_policy, structured_outputs, wrong

if TYPE_CHECKING:
    from structgen.decode.step.result import Result
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.protocol import ChatRequest
    from structgen.integrations.wire import Read

__all__ = ["Description", "described", "located", "only", "text_grammar"]


@final
@dataclass(frozen=True, slots=True)
class Description:
    """The grammar of an answer, with its origin in the request.

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
    with _answered():
        if len(given) > 1:
            wrong(given[1], f"the answer is described twice, by {given[0]} and by {given[1]}; leave one of them out")
        space = request.guided_whitespace_pattern
        if space is not None and given not in (["guided_json"], ["guided_json_object"]):
            wrong("guided_whitespace_pattern", "it needs guided_json beside it")
        if not given:
            return Description(any_text(), "text", None)
        (field,) = given
        policy = (policy or JsonPolicy()) if space is None else space_policy("guided_whitespace_pattern", space)
        kind, place, grammar = _FIELDS[field](Reading(limits, policy), field, getattr(request, field))
    return Description(grammar, kind, field, ((place, grammar),))


def text_grammar(syntax: str, place: str, value: object, limits: Limits) -> Grammar:
    """The texts of a definition in the syntax ``"lark"`` or ``"regex"``, which is that of Rust.

    Raises:
        APIError: it is malformed, or cannot be enforced.
    """
    with _answered():
        text = some_text(place, value)
        if syntax == "lark":
            return Reading(limits).lark(place, text)[2]
        with wire.located(place):
            return regex(text, dialect="rust", limits=limits)


def _says_nothing(name: str, value: object) -> bool:
    """Whether a field is left out, as far as clients are concerned."""
    if name == "response_format" and isinstance(value, dict) and value.get("type") == "text":
        return not (value.keys() - {"type"})
    return value is None or (name == "grammar" and value == "") or (name == "guided_json_object" and value is False)


def _response_format(reading: Reading, field: str, value: Any) -> Read:
    match value.get("type"):
        case "text":
            wire.only(field, value, {"type"})
        case "json_object":
            wire.only(field, value, {"type", "schema"})  # llama-server has the schema here
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


def _named_schema(reading: Reading, field: str, value: Any) -> Read:
    """``strict`` makes no difference: a schema is always enforced."""
    if "schema" in value:  # as llama-server has it
        wire.only(field, value, {"type", "schema"})
        return reading.schema(f"{field}.schema", value["schema"])
    wire.only(field, value, {"type", "json_schema"})
    held, place = value.get("json_schema"), f"{field}.json_schema"
    if not isinstance(held, dict) or held.get("schema") is None:
        wrong(place, "expected an object with 'name' and 'schema'")
    wire.only(place, held, {"name", "description", "schema", "strict"})
    if not isinstance(held.get("strict"), (bool, type(None))):
        wrong(f"{place}.strict", "expected true or false")
    return reading.schema(f"{place}.schema", held["schema"])


def _format(reading: Reading, field: str, value: Any) -> Read:
    if value == "json":
        return reading.any_object(field)
    if not isinstance(value, dict):
        wrong(field, "expected 'json' or a JSON Schema")
    return reading.schema(field, value)


_FIELDS: Final[Mapping[str, Callable[[Reading, str, Any], Read]]] = {
    "response_format": _response_format,
    "structured_outputs": structured_outputs,
    "guided_json": Reading.schema,
    "guided_json_object": Reading.flag,
    "guided_regex": Reading.pattern,
    "guided_choice": Reading.choices,
    "guided_grammar": Reading.ebnf_or_lark,
    "structural_tag": Reading.tag,
    "regex": Reading.pattern,
    "ebnf": Reading.ebnf,
    "json_schema": Reading.schema,
    "grammar": Reading.gbnf,
    "format": _format,
}
"""The fields that describe an answer, and how each is read."""


@contextmanager
def _answered() -> Iterator[None]:
    """Let what is wrong with a description be an answer."""
    try:
        yield
    except WireError as error:
        if error.cause is not None:
            raise api_error(error.cause, param=error.place) from error.cause
        refuse(error.place, error.problem)


@contextmanager
def located(place: str) -> Iterator[None]:
    """Let errors of a front end name their place in a field of the request, with the JSON Pointer inside it.

    Raises:
        APIError: there is one.
    """
    with _answered(), wire.located(place):
        yield


def only(place: str, value: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Refuse members that are not known."""
    with _answered():
        wire.only(place, value, known)
