"""A model on a server with OpenAI's API: requests, streamed answers, retries and errors."""

from __future__ import annotations

import email.utils
import json
import secrets
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, final

from structgen.decode.step.background import Returning
from structgen.errors import ModelError, ProgramError, StructgenError, install
from structgen.integrations.openai_server.dialects import (
    DIALECTS,
    Dialect,
    Kind,
    Translation,
    check_refusal,
    ending_of,
    sampling_of,
    translation_of,
)
from structgen.integrations.openai_server.schemas import WRAPPER
from structgen.program import answer_of
from structgen.program.backends.remote_answer import Ending
from structgen.program.json_cursor import FieldEnd, JsonCursor
from structgen.travel import Live

if TYPE_CHECKING:
    from types import TracebackType

    import httpx

    from structgen.decode import AnySampler
    from structgen.program import Answer
    from structgen.program.backends.remote_answer import RemotePrompt

__all__ = ["OpenAIServer", "remote"]

_CANARY_PROMPT: Final = "Say hello."
_MAX_CANARY_TOKENS: Final = 1024  # some models think first
_LETTERS: Final = "bcdfghjklmnpqrstvwxz"
_MAX_WAIT_S: Final = 60.0
_MAX_WAITS: Final = 3
_MAX_CONNECT_S: Final = 10.0
_MAX_SHOWN: Final = 300
_MIN_SHOWN: Final = 40
_SEEDS: Final = 1 << 31  # llama-server reads 32 bits
_REMEDIES: Final = {
    400: "see what the server says; it may not know a parameter: is kind= right?",
    401: "give the server's key as api_key=",
    403: "give a key that may use the model as api_key=",
    404: "check the address (it ends with /v1 as a rule) and the model's name",
    422: "see what the server says; it may not know a parameter: is kind= right?",
    429: "ask less often, or wait",
}


class _Misunderstood(ModelError):
    """The server refuses the request itself, so it may not know a parameter."""


def remote(
    url: str, model: str, *, kind: Kind | None = None, api_key: str | None = None, tries: int = 3, timeout: float = 60.0
) -> OpenAIServer:
    """A model on a server, for programs: ``program(..., model=remote(url, name))``.

    Args:
        url: of the server's API, ``http://host:8000/v1``.
        model: its name there.
        kind: what the server is: ``"vllm"``, ``"sglang"``, ``"llama_server"`` or ``"openai"``; None: it is found out.
        api_key: sent as bearer token.
        tries: the largest number of requests for one answer.
        timeout: the most seconds without a sign of the server.

    Raises:
        ModelError: ``httpx`` is not installed.
        ValueError: an argument makes no sense.
    """
    return OpenAIServer(url, model, kind=kind, api_key=api_key, tries=tries, timeout=timeout)


@final
class OpenAIServer(Live):
    """See ``remote``.  May be used by several threads at a time; ``close`` it, or use it in a ``with``.

    The first request is a probe for a text that no model writes by chance; it shows whether the server enforces
    constraints at all.
    """

    def __init__(
        self, url: str, model: str, *, kind: Kind | None, api_key: str | None, tries: int, timeout: float
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"remote: url is {url!r}; give an address such as http://localhost:8000/v1")
        if kind is not None and kind not in DIALECTS:
            raise ValueError(f"remote: kind is {kind!r}; give one of {', '.join(DIALECTS)}, or None")
        if tries < 1:
            raise ValueError(f"remote: tries is {tries}; give at least 1")
        if not timeout > 0:
            raise ValueError(f"remote: timeout is {timeout}; give seconds")
        try:
            import httpx
        except ImportError as error:
            raise ModelError(
                "remote", "httpx cannot be imported", evidence=str(error), remedy=install("remote")
            ) from error
        self._url = url.rstrip("/")
        self._model = model
        self._kind = kind
        self._tries = tries
        self._timeout = timeout
        self._subject = f"server {self._url}"
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.Client(
            headers=headers, timeout=httpx.Timeout(timeout, connect=min(timeout, _MAX_CONNECT_S))
        )
        self._dialects: dict[bool, Dialect] = {}  # that keep to constraints, for chats and for plain texts
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Model and server."""
        return f"{self._model} at {self._url}"

    @property
    def tries(self) -> int:
        """The largest number of requests for one answer."""
        return self._tries

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __enter__(self) -> OpenAIServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<remote {self.name}>"

    def translation(self, annotation: Any, *, chat: bool = True) -> Translation:
        """The request for an annotation, and the parts of it that the server will not enforce.

        Raises:
            as ``serve``, and as ``structgen.program.answer_of``.
        """
        return self._translation(answer_of(annotation), chat=chat)[1]

    def serve(
        self, prompt: RemotePrompt, answer: Answer, *, max_tokens: int, sampler: AnySampler, seed: int
    ) -> Generator[str, None, Ending]:
        """Ask for one answer and yield its text as it comes; closing the generator ends the request.

        Raises:
            ModelError: the server can't be reached, refuses, fails, is not understood, or ignores constraints.
            GrammarError: the server has no notation for the constraint.
            ProgramError: nor for how it is to be sampled, or it can't go on with the assistant's turn.
            GenerationError: the model refuses.
        """
        dialect, translation = self._translation(answer, chat=not isinstance(prompt, str))
        path, body = self._request(prompt, dialect, max_tokens)
        body |= {**sampling_of(sampler, dialect), "seed": seed % _SEEDS, **translation.parameters}
        pieces = self._answered(path, body)
        if translation.is_wrapped:
            pieces = _without_wrapper(pieces, answer)
        ending = yield from pieces
        return Ending(ending.finish_reason, ending.prompt_tokens, ending.tokens, translation.losses)

    def _translation(self, answer: Answer, *, chat: bool) -> tuple[Dialect, Translation]:
        """The translation, refused before any request where the server's kind is known."""
        if self._kind is not None:
            translation_of(answer, DIALECTS[self._kind][0], chat=chat)
        dialect = self._dialect(chat=chat)
        return dialect, translation_of(answer, dialect, chat=chat)

    def _dialect(self, *, chat: bool) -> Dialect:
        """The dialect whose constraints the server keeps to; probed once.

        Raises:
            ModelError: there is none.
        """
        with self._lock:
            if chat not in self._dialects:
                self._dialects[chat] = self._find_dialect(chat=chat)
            return self._dialects[chat]

    def _find_dialect(self, *, chat: bool) -> Dialect:
        kinds = (self._kind,) if self._kind is not None else tuple(DIALECTS)
        found: list[str] = []
        for dialect in (dialect for kind in kinds for dialect in DIALECTS[kind]):
            if dialect == "openai" and not chat:
                continue
            words = tuple("".join(secrets.choice(_LETTERS) for _ in range(8)) for _ in range(2))
            try:
                text = self._canary(words, dialect, chat=chat)
            except _Misunderstood as error:
                found.append(f"as {dialect} it refuses: {error.evidence}")
                continue
            if text in words:
                return dialect
            found.append(f"as {dialect}, asked for {words[0]!r} or {words[1]!r}, it says {text[:_MIN_SHOWN]!r}")
        raise ModelError(
            self._subject,
            "the server ignores the constraint" if found else "OpenAI's completions take no constraint",
            evidence="; ".join(found),
            remedy="say what it is by kind=, and start it with structured outputs enabled"
            if found
            else "leave chat=True",
        )

    def _canary(self, words: tuple[str, ...], dialect: Dialect, *, chat: bool) -> str:
        """What the server says where only ``words`` are allowed; cut off once it is plainly something else."""
        answer = answer_of(Literal[words])
        translation = translation_of(answer, dialect, chat=chat)
        path, body = self._request(
            ({"role": "user", "content": _CANARY_PROMPT},) if chat else _CANARY_PROMPT, dialect, _MAX_CANARY_TOKENS
        )
        pieces = self._answered(path, {**body, "temperature": 0, **translation.parameters})
        if translation.is_wrapped:
            pieces = _without_wrapper(pieces, answer)
        text = ""
        try:
            for piece in pieces:
                text += piece
                if len(text) > _MIN_SHOWN and not any(word.startswith(text) for word in words):
                    break
        finally:
            pieces.close()
        return text

    def _request(self, prompt: RemotePrompt, dialect: Dialect, max_tokens: int) -> tuple[str, dict[str, Any]]:
        limit = "max_completion_tokens" if dialect == "openai" else "max_tokens"
        body: dict[str, Any] = {
            "model": self._model,
            limit: max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if isinstance(prompt, str):
            return "/completions", {**body, "prompt": prompt}
        body["messages"] = list(prompt)
        if prompt[-1]["role"] == "assistant":
            if dialect == "openai":
                raise ProgramError(
                    self._subject,
                    "OpenAI can't go on with a turn of the assistant",
                    evidence=f"the turn begins {prompt[-1]['content'][:60]!r}",
                    remedy="yield user(...) before the next answer",
                )
            if dialect != "llama_server":  # which does so by itself
                body |= {"continue_final_message": True, "add_generation_prompt": False}
        return "/chat/completions", body

    def _answered(self, path: str, body: dict[str, Any]) -> Generator[str, None, Ending]:
        """Send a request and yield the text of its answer; waits where the server asks for it."""
        import httpx

        waited = 0.0
        for attempt in range(_MAX_WAITS + 1):
            try:
                # Not httpx's own JSON: it fails at lone surrogates, which a model may have written.
                with self._client.stream("POST", self._url + path, content=json.dumps(body)) as response:
                    wait = _retry_after(response)
                    if wait is None or attempt == _MAX_WAITS or waited + wait > _MAX_WAIT_S:
                        if response.status_code != 200:
                            response.read()
                            raise self._refused(response, path)
                        return (yield from self._read(response, path))
            except httpx.TimeoutException as error:
                raise self._failure(
                    path, f"it gave no sign for {self._timeout:g} s", error, "wait for it, or allow a larger timeout="
                ) from error
            except httpx.ConnectError as error:
                raise self._failure(path, "it can't be reached", error, "start it, or check the address") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._failure(path, "the connection broke", error, "look at the server's log") from error
            waited += wait
            time.sleep(wait)
        raise RuntimeError("the last attempt neither answers nor fails")

    def _read(self, response: httpx.Response, path: str) -> Generator[str, None, Ending]:
        """Yield the text of a stream of server-sent events."""
        finish: str | None = None
        usage: dict[str, Any] = {}
        for event in self._events(response, path):
            if isinstance(event.get("usage"), dict):
                usage = event["usage"]
            choices = event.get("choices")
            if not isinstance(choices, list):
                raise self._malformed(path, json.dumps(event))
            if not choices:
                continue
            try:
                choice = choices[0]
                delta = choice["delta"] if "delta" in choice else {"content": choice["text"]}
                content = delta.get("content")
                check_refusal(self._subject, delta)
                finish = choice.get("finish_reason") or finish
            except (KeyError, TypeError, AttributeError):
                raise self._malformed(path, json.dumps(event)) from None
            if content is not None and not isinstance(content, str):
                raise self._malformed(path, json.dumps(event))
            if content:
                yield content
        if finish is None:
            raise self._failure(path, "its answer broke off", None, "look at the server's log, and ask again")
        return ending_of(self._subject, {"finish_reason": finish}, usage)

    def _events(self, response: httpx.Response, path: str) -> Iterator[dict[str, Any]]:
        for line in response.iter_lines():
            if not line.startswith("data:"):
                if line.startswith(("{", "<")):  # no stream at all
                    raise self._malformed(path, line)
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise self._malformed(path, data) from None
            if not isinstance(event, dict):
                raise self._malformed(path, data)
            if event.get("error"):
                raise self._failure(path, "it failed", None, "look at the server's log", said=_message(event, data))
            yield event

    def _refused(self, response: httpx.Response, path: str) -> StructgenError:
        """The error for a status that is no success, with what the server says itself."""
        status = response.status_code
        try:
            said = _message(response.json(), response.text)
        except ValueError:
            said = response.text
        kind = _Misunderstood if status in (400, 422) else ModelError
        remedy = _REMEDIES.get(status, "look at the server's log" if status >= 500 else "see what the server says")
        return kind(
            self._subject,
            f"it answers {self._request_line(path)} with HTTP {status}",
            evidence=f"it says {said[:_MAX_SHOWN]!r}",
            remedy=remedy,
        )

    def _malformed(self, path: str, found: str) -> ModelError:
        return self._failure(
            path,
            "its answer is no stream of chunks",
            None,
            "check that the address is of an API like OpenAI's",
            said=found,
        )

    def _failure(
        self, path: str, problem: str, error: Exception | None, remedy: str, *, said: str | None = None
    ) -> ModelError:
        evidence = f"the request went to {self._request_line(path)}"
        if error is not None and str(error):
            evidence += f" ({error})"
        if said is not None:
            evidence += f"; it says {said[:_MAX_SHOWN]!r}"
        return ModelError(self._subject, problem, evidence=evidence, remedy=remedy)

    def _request_line(self, path: str) -> str:
        return f"POST {path} for model {self._model!r}"


def _without_wrapper(pieces: Generator[str, None, Ending], answer: Answer) -> Generator[str, None, Ending]:
    """The answer that comes as a property, once it is complete; what is no such object stays as it is."""
    with Returning(pieces) as received:
        text = "".join(received)
    yield _inner(text, answer)
    return received.value


def _inner(text: str, answer: Answer) -> str:
    try:
        held = json.loads(text)
    except ValueError:
        return text
    if not isinstance(held, dict) or held.keys() != {WRAPPER}:
        return text
    if answer.form == "text":
        return held[WRAPPER] if isinstance(held[WRAPPER], str) else text
    for event in JsonCursor().feed(text.encode("utf-8", "surrogatepass")):
        if isinstance(event, FieldEnd) and event.path == (WRAPPER,):
            return event.data.decode("utf-8", "surrogatepass")
    return text


def _retry_after(response: httpx.Response) -> float | None:
    """How many seconds a server that has no time asks to wait; None where it does not ask."""
    held = response.headers.get("Retry-After")
    if response.status_code not in (429, 503) or held is None:
        return None
    try:
        return max(float(held), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(held).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _message(event: Any, text: str) -> str:
    """The message of a server's error, from any of the fields that servers use."""
    held = event
    for name in ("error", "message", "detail"):
        if isinstance(held, dict) and held.get(name):
            held = held[name]
    return held if isinstance(held, str) else text
