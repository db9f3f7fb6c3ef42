"""``POST /v1/structgen/check``, ``match``, ``explain``, ``sample``: questions about a description, without the model.

The answers are those of the commands of the same names.  A description is given as chats give it, so the body of a chat
may be sent as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import Field
from starlette.responses import JSONResponse, Response

from structgen.engine import compile
from structgen.engine.analysis.byte_graph import byte_vocabulary
from structgen.engine.analysis.departure import Departure, find_departure, text_or_hex
from structgen.engine.analysis.explanation import completion_of, explanation
from structgen.engine.analysis.uniform_sampling import Alphabet, UniformStrings
from structgen.engine.lint import lint
from structgen.errors import LimitExceeded, StructgenError, UnsatisfiableGrammar, error_values
from structgen.grammar.nodes.description import Described
from structgen.integrations.server.description import described
from structgen.integrations.server.metrics import record
from structgen.integrations.server.protocol import APIError, ChatRequest, Message, api_error, parsed

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.service import Handler, Service

__all__ = ["check", "explain", "match", "sample"]

_Asked = TypeVar("_Asked", bound="LanguageRequest")

_CHUNK_BYTES: Final = 1 << 16
_EXAMPLE_BYTES: Final = 80
_MAX_STEPS: Final = 10_000


class LanguageRequest(ChatRequest):
    """A description, with or without what else a chat has."""

    messages: list[Message] = Field(default_factory=list)


class MatchRequest(LanguageRequest):
    """The body of ``match``."""

    document: str
    exact: bool = False


class ExplainRequest(LanguageRequest):
    """The body of ``explain``."""

    text: str = ""
    token: str | Annotated[int, Field(ge=0)] | None = None


class SampleRequest(LanguageRequest):
    """The body of ``sample``."""

    max_bytes: Annotated[int, Field(ge=0, le=4096)] = _EXAMPLE_BYTES
    uniform: bool = False
    any_character: bool = False


def _asked(
    kind: type[_Asked], answer: Callable[[Service, _Asked, Grammar], dict[str, Any]], *, has_refusals: bool = False
) -> Handler:
    """Return the handler of an endpoint; ``answer`` runs in a thread."""

    async def handler(service: Service, data: object) -> Response:
        request = parsed(kind, data)
        service.check_model(request.model)
        return JSONResponse(await asyncio.to_thread(answered, service, request))

    def answered(service: Service, request: _Asked) -> dict[str, Any]:
        try:
            description = described(request, service.limits, service.policy)
            if description.source is None:
                message = "there is no description; give one as in a chat, for example as response_format"
                raise APIError(400, message, param="response_format", code="missing_description")
            return answer(service, request, description.grammar)
        except (APIError, StructgenError) as error:
            cause = error if isinstance(error, StructgenError) else error.__cause__  # an APIError names the field
            if has_refusals and isinstance(cause, StructgenError):
                record().code = api_error(error).code
                return {"accepted": False, "error": error_values(cause)}
            raise

    return handler


def _of_bytes(service: Service, grammar: Grammar) -> Constraint:
    return compile(grammar, byte_vocabulary(grammar), limits=service.limits)


def _is_json(grammar: Grammar) -> bool:
    return isinstance(grammar, Described) and grammar.description.value == "json"


def _check(service: Service, _: LanguageRequest, grammar: Grammar) -> dict[str, Any]:
    """What is enforced, with the shortest output and an example."""
    constraint = service.compiled(grammar)
    findings = lint(grammar)
    return {
        "accepted": True,
        **constraint.report.to_json(),
        "notes": [str(finding) for finding in findings],
        "findings": [finding.to_json() for finding in findings],
        "shortest": completion_of(constraint.matcher()),
        "example": _example(service, grammar, constraint.report.shortest_bytes),
    }


def _example(service: Service, grammar: Grammar, shortest: int) -> str | dict[str, str] | None:
    """A random output; None where looking for one takes too long."""
    alphabets: tuple[Alphabet, ...] = ("printable", "any")
    for alphabet in alphabets:
        try:
            strings = UniformStrings(grammar, shortest + _EXAMPLE_BYTES, alphabet=alphabet, limits=service.limits)
            return text_or_hex(strings.draw(1, lengths="even", among="shapes")[0])
        except UnsatisfiableGrammar:  # none of printable characters
            continue
        except LimitExceeded:
            break
    return None


def _match(service: Service, request: MatchRequest, grammar: Grammar) -> dict[str, Any]:
    """Whether a document is an output that the description allows, and where it departs from all of them."""
    data = request.document.encode("utf-8", "surrogatepass")
    chunks = (data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES))
    matcher = _of_bytes(service, grammar).matcher()
    departure = find_departure(matcher, chunks, exact=request.exact, is_json=_is_json(grammar))
    return {"match": departure is None} | ({} if departure is None else _fields_of(departure))


def _explain(service: Service, request: ExplainRequest, grammar: Grammar) -> dict[str, Any]:
    """What may come after a text, and why a token may not."""
    vocabulary = service.model.vocabulary
    token: bytes | None = None
    if isinstance(request.token, int):
        if request.token >= vocabulary.size:
            message = f"token: the vocabulary has {vocabulary.size} tokens; found {request.token}"
            raise APIError(400, message, param="token", code="invalid_value")
        token = vocabulary.tokens[request.token]
    elif request.token is not None:
        token = request.token.encode("utf-8", "surrogatepass")
    answer = explanation(
        _of_bytes(service, grammar),
        request.text.encode("utf-8", "surrogatepass"),
        token=token,
        of_tokens=service.compiled(grammar),
        is_json=_is_json(grammar),
        max_steps=_MAX_STEPS,
    )
    return {"possible": False, **_fields_of(answer)} if isinstance(answer, Departure) else answer


def _fields_of(departure: Departure) -> dict[str, Any]:
    return departure.to_json() | {"picture": departure.picture, "message": str(departure)}


def _sample(service: Service, request: SampleRequest, grammar: Grammar) -> dict[str, Any]:
    """Random strings of the language."""
    alphabet: Alphabet = "any" if request.any_character else "printable"
    strings = UniformStrings(grammar, request.max_bytes, alphabet=alphabet, limits=service.limits)
    count, seed = 10 if request.n is None else request.n, request.seed or 0
    drawn = strings.draw(
        count,
        seed,
        lengths="uniform" if request.uniform else "even",
        among="strings" if request.uniform else "shapes",
    )
    return {"strings": [text_or_hex(each) for each in drawn], "seed": seed}


check: Final = _asked(LanguageRequest, _check, has_refusals=True)
match: Final = _asked(MatchRequest, _match)
explain: Final = _asked(ExplainRequest, _explain)
sample: Final = _asked(SampleRequest, _sample)
