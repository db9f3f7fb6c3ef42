"""Routes of vLLM's server: what of a description is enforced, and why a text is refused.

``VLLM_PLUGINS=structgen`` adds them; vLLM loads no endpoint plug-in that is not named there.  ``POST /structgen/check``
and ``POST /structgen/explain`` take a body with ``structured_outputs``, as requests have it; ``explain`` also a
``text``.  Neither runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, final

from structgen.engine import Vocabulary, compile
from structgen.grammar.nodes.description import Described
from structgen.integrations.vllm.backend import FIELD, options_of
from structgen.integrations.wire import Reading, WireError, some_text, structured_outputs, wrong

__all__ = ["answer", "endpoint_plugin"]

_BYTES: Final = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])


def answer(route: str, body: object, additional: object) -> dict[str, Any]:
    """What a route answers: the report of a description, or where a text departs from it.

    Raises:
        WireError: the body is malformed, or the description cannot be enforced.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get(FIELD), Mapping):
        wrong(FIELD, "expected an object with a description, as in requests")
    policy, limits = options_of(additional)
    _, place, grammar = structured_outputs(Reading(limits, policy), FIELD, body[FIELD])
    if route == "check":
        entries = grammar.description.entries if isinstance(grammar, Described) else ()
        return {
            "field": place,
            "entries": [
                {"keyword": each.keyword, "where": each.where, "status": each.status.value} for each in entries
            ],
        }
    matcher = compile(grammar, _BYTES, limits=limits).matcher()
    text = some_text("text", body.get("text")).encode()
    accepted = matcher.accept_bytes(text)
    explained = matcher.explain(text[accepted : accepted + 1])
    return {
        "accepted": text[:accepted].decode("utf-8", "replace"),
        "is_complete": accepted == len(text) and matcher.is_accepting,
        "expected": explained.expected,
        "rules": list(explained.rules),
    }


@final
class endpoint_plugin:  # noqa: N801  vLLM calls it without arguments
    """The plug-in, as ``vllm.plugins.endpoint_plugins`` describes it."""

    name: ClassVar = "structgen"
    required_tasks: ClassVar = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Add the routes."""
        app.state.structgen_options = {}
        for route in ("check", "explain"):
            app.add_api_route(f"/structgen/{route}", _endpoint(route), methods=["POST"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Take the options of the server."""
        state.structgen_options = getattr(args, "additional_config", None) or {}


def _endpoint(route: str) -> Any:
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse

    async def asked(request: Request) -> JSONResponse:
        try:
            body = await request.json()
            return JSONResponse(await run_in_threadpool(answer, route, body, request.app.state.structgen_options))
        except WireError as error:
            said = {"message": str(error), "type": "BadRequestError", "param": error.place, "code": 400}
            return JSONResponse({"error": said}, status_code=400)
        except ValueError as error:
            said = {"message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse({"error": said}, status_code=400)

    asked.__annotations__ = {"request": Request, "return": JSONResponse}
    return asked
