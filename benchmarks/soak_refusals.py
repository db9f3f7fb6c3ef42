"""Requests of the clients of ``soak_server.py`` that must be refused: each names the errors that it may end in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from soak_client import FULL, LIMIT, Case, Client
from soak_requests import CHAT, COMPLETIONS, INVALID, RESPONSES, TOO_SMALL, described, messages_of

__all__ = ["REFUSALS"]


def _schema_body(rng: random.Random, schema: Any, field: str = "") -> dict[str, Any]:
    case = Case("schema", json.dumps(schema), None, 0)
    return {"messages": messages_of(rng, 4), "max_tokens": 24, **described(case, rng, field=field)}


def bad_descriptions(client: Client, rng: random.Random) -> None:
    """Schemas and grammars that are broken, that nothing satisfies, or that are too large."""
    broken: list[Any] = [{"type": "strin"}, {"$ref": "#/nowhere"}, {"minimum": "3"}, {"pattern": "("}, {"enum": 3}]
    empty = [{"type": "integer", "minimum": 5, "maximum": 3}, {"enum": []}, {"allOf": [{"const": 1}, {"const": "1"}]}]
    nested: dict[str, Any] = {}
    for _ in range(rng.choice([600, 900])):
        nested = {"type": "array", "items": nested, "minItems": 1}
    large: list[Any] = [
        nested,
        {"type": "array", "minItems": 10**9, "items": {}},
        {"$ref": "#"},
    ]
    match rng.randrange(5):
        case 0:
            schema = rng.choice(broken)
            client.refused(CHAT, _schema_body(rng, schema), {INVALID, "400 invalid_value", FULL})
        case 1:
            client.refused(CHAT, _schema_body(rng, rng.choice(empty)), {INVALID, "400 invalid_value", FULL})
        case 2:
            codes = {LIMIT, INVALID, TOO_SMALL, FULL}
            client.refused(CHAT, _schema_body(rng, rng.choice(large)), codes)
        case 3:
            grammar = rng.choice(['start: "a', "start: b", "start: start", 'root ::= "a" |', "root ::= [", "%%"])
            body = {"messages": messages_of(rng), "structured_outputs": {"grammar": grammar}}
            client.refused(CHAT, body, {INVALID, LIMIT, FULL})
        case _:
            pattern = rng.choice(["(", "[z-a]", "a{2,1}", "(?<=a)b{9}(?=c)", "*"])
            client.refused(COMPLETIONS, {"prompt": "x", "regex": pattern, "stream": True}, {INVALID, LIMIT, FULL})


def bad_bodies(client: Client, rng: random.Random) -> None:
    """Bodies that are no JSON, have fields that are unknown or out of range, or are too large."""
    good = {"messages": messages_of(rng, 4), "max_tokens": 8}
    data = json.dumps(good).encode()
    at = rng.randrange(1, len(data))
    malformed = [
        data[:at],
        data[:at] + b"\xff" + data[at:],
        b"",
        b'{"a":' * 9000,
        b'{"a":1,"a":2}',
        b'{"n":NaN}',
        b"[",
        b'"\\ud800"',
    ]
    fields: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": "hi"},
        {"messages": [{"role": "king", "content": "x"}]},
        {"max_tokens": 0},
        {"max_tokens": "8"},
        {"max_tokens": 10**6},
        {"temperature": -1},
        {"top_p": 0},
        {"n": 129},
        {"stop": ["x"] * 17},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {str(10**9): 1}},
        {"top_logprobs": 3},
        {"best_of": 3},
        {"beam": True},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_object"}, "regex": "a"},
        {"tools": [{"type": "function", "function": {"name": "no name"}}]},
        {"tool_choice": "required"},
        {"reasoning_effort": "high"},
        {"structgen": {"sampler": "nobody"}},
        {"structgen": {"sampler": {"name": "smc", "particles": 10**6}}},
        {"structgen": {"what": 1}},
        {"structgen": {"marginals": True}},
        {"structgen": {"trace": True}},
    ]
    match rng.randrange(8):
        case 0 | 1:
            client.refused(CHAT, rng.choice(malformed), {"400 invalid_json", "400 None"})
        case 2 | 3 | 4:
            codes = {"400 invalid_value", "400 unsupported_parameter", "400 context_length_exceeded", INVALID}
            client.refused(CHAT, {**good, **rng.choice(fields)}, codes | {FULL})
        case 5:
            body = b'{"messages": [{"role": "user", "content": "' + b"x" * rng.choice([5 << 20, 6 << 20]) + b'"}]}'
            if rng.random() < 0.5:
                client.refused(CHAT, body, {"413 body_too_large"})
            else:
                with client.connected(client.head(CHAT, rng.choice([5 << 20, 1 << 40]))) as connection:
                    client.check(connection.recv(12) == b"HTTP/1.1 413", "a huge body is not refused")
                client.note("413 body_too_large")
        case 6:
            long = "word " * 9000
            which: list[tuple[str, dict[str, Any], str]] = [
                (CHAT, {"messages": [{"role": "user", "content": long}]}, "400 context_length_exceeded"),
                (COMPLETIONS, {"prompt": [[1], [10**7]]}, "400 invalid_value"),
                (COMPLETIONS, {"prompt": []}, "400 invalid_value"),
                (RESPONSES, {"input": "x", "store": True}, "400 unsupported_parameter"),
                ("/detokenize", {"tokens": [-1]}, "400 invalid_value"),
                ("/v1/structgen/check", {}, "400 missing_description"),
            ]
            path, body_of, code = rng.choice(which)
            client.refused(path, body_of, {code, FULL})
        case _:
            client.refused(CHAT, {**good, "model": "other"}, {"404 model_not_found"})


def strangers(client: Client, rng: random.Random) -> None:
    """No key or a wrong one, paths that are not there, methods that are not served."""
    body = {"messages": messages_of(rng, 4), "max_tokens": 4}
    path = rng.choice([CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/v1/structgen/check"])
    key = rng.choice(["", "Bearer", "Bearer wrong", f"Basic {client.target.key}", f"Bearer {client.target.key}x"])
    client.refused(path, body, {"401 invalid_api_key"}, headers={"Authorization": key})
    client.refused(rng.choice(["/v1/nothing", "/v1/models/none", "/v1/chat"]), body, {"404 None", "405 None"})
    client.refused(CHAT, body, {"405 None"}, method=rng.choice(["GET", "PUT", "DELETE"]))


REFUSALS: Final[dict[Callable[[Client, random.Random], None], float]] = {
    bad_descriptions: 2,
    bad_bodies: 2,
    strangers: 1,
}
"""What clients do, and how often; as in ``soak_requests.py``."""
