"""What the clients of ``soak_server.py`` do: all endpoints, and clients that are slow, in a hurry, or go away.

Each function is one turn of a client.  What it draws comes from its ``rng`` alone.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from soak_client import BODY_S, FULL, LIMIT, Case, Client, Gone
from soak_sources import LazyJudge, Output, Source, read, verdict

import structgen as sg

__all__ = ["ACTIONS", "CHAT", "COMPLETIONS", "INVALID", "RESPONSES", "TOO_SMALL", "described", "messages_of"]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MOST: Final = 96
TOO_SMALL: Final = "400 max_tokens_too_small"
INVALID: Final = "400 invalid_description"
WRITING: Final = {FULL, LIMIT, "in the stream limit_exceeded", "in the stream queue_full"}
"""Errors that any answer may end in: the queue was full, or the work for the description met its limit."""
WORDS: Final = [
    "the",
    "city",
    "name",
    "river",
    "Ada",
    "36",
    "London",
    "red",
    "list",
    "of",
    "{",
    "}",
    "[",
    "]",
    '"',
    ":",
    ",",
    "é",
    "日本",
    "\n",
    "one",
    "two",
    "json",
]
SAMPLERS: Final[list[Any]] = [
    *(
        "greedy",
        "multinomial",
        "awrs",
        "cautious",
        {"name": "adadec", "threshold": 1.0},
        "momentum",
        "lookback",
        "bregman",
    ),
    *({"name": "smc", "particles": 3}, {"name": "bestof", "n": 2}, {"name": "beam", "n": 2}),
    *({"name": "asap", "samples": 2}, {"name": "firstfinish", "samples": 2}, {"name": "rejection", "max_tries": 64}),
]


def _text(rng: random.Random, most: int = 24) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def messages_of(rng: random.Random, most: int = 24) -> list[dict[str, Any]]:
    """A chat of one to four messages; few systems, so that prompts share prefixes."""
    made: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        made.append({"role": "system", "content": rng.choice(["You answer in JSON.", "You are brief."])})
    for _ in range(rng.randint(0, 1)):
        made += [{"role": "user", "content": _text(rng, most)}, {"role": "assistant", "content": _text(rng, most)}]
    content: Any = _text(rng, most)
    made.append({"role": "user", "content": rng.choice([content, [{"type": "text", "text": content}]])})
    return made


def described(case: Case, rng: random.Random, *, field: str = "") -> dict[str, Any]:
    """The description in the notation of some server."""
    if case.kind == "schema":
        schema = json.loads(case.text)
        named = {"name": "answer", "schema": schema}
        forms: list[dict[str, Any]] = [
            {"response_format": {"type": "json_schema", "json_schema": {**named, "strict": rng.random() < 0.5}}},
            {"response_format": {"type": "json_schema", "schema": schema}},
            {"response_format": {"type": "json_object", "schema": schema}},
            {"structured_outputs": {"json": rng.choice([schema, case.text])}},
            {"guided_json": schema},
            {"json_schema": case.text},
            {"format": schema},
        ]
    elif case.kind == "regex":
        forms = [{"structured_outputs": {"regex": case.text}}, {"guided_regex": case.text}, {"regex": case.text}]
    else:
        forms = [
            {"structured_outputs": {"grammar": case.text}},
            {"guided_grammar": case.text},
            {"grammar": f"%llguidance {{}}\n{case.text}"},
        ]
    return next(form for form in forms if field in form) if field else rng.choice(forms)


def _sampling(rng: random.Random) -> dict[str, Any]:
    drawn = {
        "temperature": rng.choice([0, 0.7, 1.0, 1.5]),
        "top_p": rng.choice([0.5, 0.9, 1]),
        "top_k": rng.choice([-1, 1, 40]),
        "min_p": rng.choice([0, 0.05]),
        "seed": rng.randrange(1 << 20),
        "frequency_penalty": rng.choice([0, 0.5]),
        "presence_penalty": rng.choice([0, -0.5]),
        "repetition_penalty": rng.choice([1.0, 1.2]),
        "logit_bias": {str(rng.randrange(250)): rng.choice([-100, 5])},
        "user": "soak",
    }
    return {name: drawn[name] for name in rng.sample(sorted(drawn), rng.randint(0, 4))}


def _limit(case: Case, rng: random.Random) -> int:
    return case.least * (1 + case.is_near) + rng.choice([0, 1, 8, 32])  # near a limit, the server may know a bound only


def _is_usable(client: Client, case: Case, path: str, body: dict[str, Any], rng: random.Random) -> bool:
    """Whether answers are to be expected; otherwise the request is sent, and must be refused, as a stream or not."""
    name = "max_output_tokens" if path == RESPONSES else "max_tokens"
    codes = None if case.refusal is None else {case.refusal}
    if codes is None and case.least > 1 and (case.least > MOST or rng.random() < 0.05):
        body[name] = rng.randint(1, min(case.least - 1, MOST))
        codes = {TOO_SMALL} | ({LIMIT} if case.is_near else set())
    if codes is None:
        return True
    client.refused(path, {**body, "stream": rng.random() < 0.3}, codes | {FULL})
    return False


def _chat_texts(client: Client, body: dict[str, Any], rng: random.Random, **reading: Any) -> list[dict[str, Any]]:
    """The messages of a chat's answer, whole or put together from its stream; none for an error that may be."""
    may = WRITING | reading.pop("may", set())
    if rng.random() < 0.5:
        answer = client.post(CHAT, body, may)
        if answer is None:
            return []
        choices = answer["choices"]
        used = answer["usage"]["completion_tokens"]
        client.check(used <= len(choices) * body["max_tokens"], f"{used} tokens for max_tokens {body['max_tokens']}")
        return [{**choice["message"], "reason": choice["finish_reason"]} for choice in choices]
    events = client.stream(CHAT, body, may, **reading)
    made: dict[int, dict[str, Any]] = defaultdict(lambda: {"content": "", "reason": None, "tool_calls": []})
    for event in events or []:
        for choice in event["choices"]:
            message, delta = made[choice["index"]], choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reason"] = choice["finish_reason"] or message["reason"]
            for call in delta.get("tool_calls") or []:
                calls = message["tool_calls"]
                if call["index"] == len(calls):
                    calls.append({"function": {"name": "", "arguments": ""}})
                for name, text in call["function"].items():
                    calls[call["index"]]["function"][name] += text or ""
    return list(made.values())


def chat(client: Client, rng: random.Random) -> None:
    """A chat with a description: several answers, scores, events, penalties; streamed or not."""
    case = client.cases.draw(rng)
    body = {"messages": messages_of(rng), "max_tokens": max(_limit(case, rng), 1), "n": rng.choice([1, 1, 1, 2, 3])}
    body |= described(case, rng) | _sampling(rng)
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 5)}
    if rng.random() < 0.2:
        body["structgen"] = dict.fromkeys(rng.sample(["events", "report"], rng.randint(0, 2)), True)
    if not _is_usable(client, case, CHAT, body, rng):
        return
    messages = _chat_texts(client, body, rng)
    client.judge([(read(case.kind, case.text), message["content"]) for message in messages], body)
    client.check(all(each["reason"] == "stop" for each in messages), f"an answer is cut: {messages}")


def free_text(client: Client, rng: random.Random) -> None:
    """A chat without a description, with stops; any JSON object."""
    body: dict[str, Any] = {"messages": messages_of(rng), "max_tokens": rng.randint(1, 40), **_sampling(rng)}
    is_json = rng.random() < 0.3
    if is_json:
        body |= {"response_format": {"type": "json_object"}, "max_tokens": 24}
    elif rng.random() < 0.5:
        body["stop"] = rng.choice([" ", ["a", "the", "\n"]])
    messages = _chat_texts(client, body, rng)
    if is_json:
        source = Source("json_object", "", sg.json_schema({}), LazyJudge('{"type": "object"}'))
        client.judge([(source, message["content"]) for message in messages], body)
    is_stopped = not any(stop in message["content"] for stop in body.get("stop") or [] for message in messages)
    client.check(is_stopped, f"a stop is sent: {messages}")


def completions(client: Client, rng: random.Random) -> None:
    """Completions of texts or token ids, several at once."""
    case = client.cases.draw(rng)
    prompts: list[Any] = [_text(rng), [rng.randrange(250) for _ in range(rng.randint(1, 9))]]
    prompt = rng.choice([*prompts, [_text(rng), _text(rng)], [[1, 2], [3]]])
    body = {"prompt": prompt, "max_tokens": max(_limit(case, rng), 1), "n": rng.choice([1, 1, 2])}
    body |= described(case, rng) | _sampling(rng)
    body |= rng.choice([{}, {"logprobs": rng.randint(0, 3)}])
    if not _is_usable(client, case, COMPLETIONS, body, rng):
        return
    texts: dict[int, str] = defaultdict(str)
    is_stream = rng.random() < 0.5
    found = (client.stream if is_stream else client.post)(COMPLETIONS, body, WRITING)
    for event in (found if is_stream else [found]) if found else ():
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    client.judge([(read(case.kind, case.text), text) for text in texts.values()], body)


def responses(client: Client, rng: random.Random) -> None:
    """Responses with a schema."""
    case = client.cases.draw(rng)
    if case.kind != "schema":
        return
    body: dict[str, Any] = {"input": rng.choice([_text(rng), messages_of(rng)]), "max_output_tokens": _limit(case, rng)}
    body["max_output_tokens"] = max(1, body["max_output_tokens"])
    body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": json.loads(case.text)}}
    body |= rng.choice([{}, {"top_logprobs": 2}, {"instructions": "Be brief.", "temperature": 0}])
    if not _is_usable(client, case, RESPONSES, body, rng):
        return
    is_stream = rng.random() < 0.5
    found = (client.stream if is_stream else client.post)(RESPONSES, body, WRITING)
    if not found:
        return
    whole = found[-1]["response"] if is_stream else found
    client.check(whole["status"] == "completed", f"the response is {whole['status']}")
    text = whole["output"][0]["content"][0]["text"]
    if is_stream:
        deltas = "".join(event.get("delta", "") for event in found)
        client.check(deltas == text, f"deltas {deltas!r} are not the text {text!r}")
    client.judge([(read(case.kind, case.text), text)], body)


def tools(client: Client, rng: random.Random) -> None:
    """Calls of functions with real schemas; each call's arguments are judged by the schema of its function."""
    cases = [client.cases.draw(rng, "s") for _ in range(rng.randint(1, 3))]
    schemas = [json.loads(case.text) for case in cases]
    schemas = [each for each in schemas if isinstance(each, dict) and each.get("type", "object") == "object"]
    schemas = [{"type": "object", **each} for each in schemas] or [{"type": "object", "properties": {}}]
    functions = [
        {"type": "function", "function": {"name": f"f{index}", "parameters": schema}}
        for index, schema in enumerate(schemas)
    ]
    named = {"type": "function", "function": {"name": "f0"}}
    choice = rng.choice(["auto", "required", "none", named])
    body: dict[str, Any] = {"messages": messages_of(rng), "tools": functions, "tool_choice": choice, **_sampling(rng)}
    body |= {"max_tokens": MOST, "parallel_tool_calls": rng.random() < 0.5}
    messages = _chat_texts(client, body, rng, may={TOO_SMALL, INVALID})
    outputs: list[Output] = []
    for message in messages:
        calls = message.get("tool_calls") or []
        client.check(not calls or message["reason"] == "tool_calls", f"calls end with {message['reason']}")
        client.check(bool(calls) or choice in ("auto", "none"), f"no call, with tool_choice {choice}: {message}")
        for call in calls:
            schema = schemas[int(call["function"]["name"][1:])]
            text = json.dumps(schema)
            outputs.append(
                (Source("parameters", text, sg.json_schema({}), LazyJudge(text)), call["function"]["arguments"])
            )
    client.judge(outputs, body)


def samplers(client: Client, rng: random.Random) -> None:
    """Samplers by name; all outputs that they weigh are judged."""
    case = client.cases.draw(rng, "srl")
    if case.least > 24:
        return
    body: dict[str, Any] = {"messages": messages_of(rng, 6), "max_tokens": max(1, case.least + rng.choice([2, 8]))}
    body |= {**described(case, rng), "seed": rng.randrange(99), "structgen": {"sampler": rng.choice(SAMPLERS)}}
    may = WRITING | {"400 generation_failed", "400 invalid_value"}
    answer = client.post(CHAT, body, may)
    if answer is None:
        return
    source = read(case.kind, case.text)
    for choice in answer["choices"]:
        texts = [choice["message"]["content"], *(each["text"] for each in choice["structgen"].get("samples", ()))]
        client.judge([(source, text) for text in texts], body)


def marginals(client: Client, rng: random.Random) -> None:
    """The probabilities of the values of fields add up to 1."""
    case = client.cases.draw(rng, "s")
    if case.least > 40:
        return
    body: dict[str, Any] = {"messages": messages_of(rng, 6), "max_tokens": max(1, case.least + 8), "temperature": 0}
    body |= {**described(case, rng), "structgen": {"marginals": True, "events": True}}
    answer = client.post(CHAT, body, WRITING)
    if answer is None:
        return
    choice = answer["choices"][0]
    client.judge([(read(case.kind, case.text), choice["message"]["content"])], body)
    for each in choice["structgen"]["marginals"]:
        total = sum(value["probability"] for value in each["values"] or ())
        client.check(each["values"] is None or abs(total - 1) < 1e-6, f"probabilities add up to {total}: {each}")


def questions(client: Client, rng: random.Random) -> None:
    """``check``, ``sample``, ``match`` and ``explain`` of one description."""
    case = client.cases.draw(rng)
    asked = described(case, rng)
    found = client.post("/v1/structgen/check", asked)
    is_right = case.is_near or found["accepted"] == (case.refusal is None)
    client.check(is_right, f"check says {found!r:.300}, expected {case.refusal}")
    if case.refusal is not None:
        client.refused(f"/v1/structgen/{rng.choice(['explain', 'sample'])}", asked, {case.refusal})
    if case.refusal is not None or not found["accepted"]:
        return
    source, texts = read(case.kind, case.text), [found["shortest"], found["example"]]
    size = min(80 + len(str(found["shortest"])), 4096)  # the most that may be asked for
    sampled = client.post("/v1/structgen/sample", {**asked, "n": 4, "max_bytes": size}, {LIMIT, INVALID})
    texts += [] if sampled is None else sampled["strings"]
    texts = [text for text in texts if isinstance(text, str)]
    client.judge([(source, text) for text in texts], asked)
    text = rng.choice(texts) if texts else ""
    for document, must in ((text, bool(texts)), (text + "\0", verdict((source, text + "\0")) == "valid")):
        told = client.post("/v1/structgen/match", {**asked, "document": document}, {LIMIT})
        if told is not None:
            client.check(told["match"] == must, f"match says {told} of {document!r}; asked {asked}")
    start = text[: rng.randint(0, len(text))]
    token = rng.choice([None, "a", '"', rng.randrange(250)])
    client.post("/v1/structgen/explain", {**asked, "text": start, "token": token}, {LIMIT})


def tokens(client: Client, rng: random.Random) -> None:
    """Texts to tokens and back."""
    text = _text(rng, 60)
    told = client.post("/tokenize", {"prompt": text, "add_special_tokens": False, "return_token_strs": True})
    back = client.post("/detokenize", {"tokens": told["tokens"]})
    client.check(back["prompt"] == text, f"{text!r} comes back as {back}")
    client.check(client.post("/tokenize", {"messages": messages_of(rng)})["count"] > 0, "a chat has no tokens")


def pages(client: Client, rng: random.Random) -> None:
    """What is read with GET."""
    for path in rng.sample(["/", "/health", "/version", "/metrics", "/v1/models"], 2):
        answer = client.http.get(path)
        client.check(answer.status_code == 200 and bool(answer.content), f"GET {path}: {answer.status_code}")


def leaves_stream(client: Client, rng: random.Random) -> None:
    """A client that reads some events of a stream and goes away."""
    case = client.cases.draw(rng, "srl")
    body = {"messages": messages_of(rng), "max_tokens": case.least + MOST, "n": rng.choice([1, 1, 3])}
    path = rng.choice([CHAT, CHAT, COMPLETIONS])
    body |= described(case, rng) | {"structgen": {"events": True}}
    if path == COMPLETIONS:
        body["prompt"] = body.pop("messages")[-1]["content"]
        body["prompt"] = body["prompt"] if isinstance(body["prompt"], str) else "text"
    client.stream(path, body, WRITING, leave=rng.randint(1, 12))


def leaves_prompt(client: Client, rng: random.Random) -> None:
    """A client that goes away before its answer: while the body is sent, the prompt is read, or the answer written."""
    case = client.cases.draw(rng, "srl")
    body = {"messages": messages_of(rng, rng.choice([20, 400])), "max_tokens": case.least + 40, **described(case, rng)}
    sent = json.dumps({**body, "n": rng.choice([1, 2])}).encode()
    with client.connected(client.head(CHAT, len(sent))) as connection:
        connection.sendall(sent[: rng.choice([0, len(sent) // 2, len(sent), len(sent)])])
        time.sleep(rng.choice([0, 0.01, 0.1, 0.5]))
        if rng.random() < 0.5:  # with a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raise Gone


def vanishes(client: Client, rng: random.Random) -> None:
    """Connections that open, say little or nonsense, and vanish."""
    said = [
        b"",
        b"POST /v1",
        client.head(CHAT, 50) + b"{",
        b"\x16\x03\x01 noise\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    held = [client.connected(rng.choice(said)) for _ in range(rng.randint(1, 12))]
    time.sleep(rng.choice([0, 0.05]))
    for connection in held:
        connection.close()
    raise Gone


def slow(client: Client, rng: random.Random) -> None:
    """A client that sends its body in pieces, and one that reads its stream slowly; both get their answers."""
    case = client.cases.draw(rng, "srl")
    body = {"messages": messages_of(rng), "max_tokens": case.least + 16, **described(case, rng)}
    if rng.random() < 0.5:
        client.stream(CHAT, body, WRITING, wait_s=0.05)
        return
    data, began = json.dumps(body).encode(), time.monotonic()

    def pieces() -> Any:
        for start in range(0, len(data), len(data) // 8 + 1):
            yield data[start : start + len(data) // 8 + 1]
            time.sleep(0.05)

    answer = client.http.post(CHAT, content=pieces())
    is_late = answer.status_code == 408 and time.monotonic() - began > BODY_S  # the machine was too busy
    client.check(is_late or answer.status_code in (200, 429, 400), f"status {answer.status_code}: {answer.text:.300}")
    if answer.status_code == 200:
        client.judge([(read(case.kind, case.text), answer.json()["choices"][0]["message"]["content"])], body)
    elif answer.status_code == 400:
        client.check(answer.json()["error"]["code"] == "limit_exceeded", answer.text)


def burst(client: Client, rng: random.Random) -> None:
    """More requests at once than the server has room for: answered or told to come again, never anything else."""
    cases = [client.cases.draw(rng, "srl") for _ in range(10)]

    def one(case: Case) -> None:
        local = random.Random(case.text)
        body = {"messages": messages_of(local), "max_tokens": case.least + 4, "n": 4, **described(case, local)}
        for message in _chat_texts(client, body, local):
            client.judge([(read(case.kind, case.text), message["content"])], body)

    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(one, cases))


ACTIONS: Final[dict[Callable[[Client, random.Random], None], float]] = {
    chat: 5,
    free_text: 1,
    completions: 2,
    responses: 2,
    tools: 2,
    samplers: 1,
    marginals: 0.7,
    questions: 2,
    tokens: 1,
    pages: 0.5,
    leaves_stream: 2,
    leaves_prompt: 1.5,
    vanishes: 1,
    slow: 0.7,
    burst: 0.2,
}
"""What clients do, and how often."""
