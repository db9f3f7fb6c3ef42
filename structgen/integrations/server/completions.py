"""``POST /v1/completions``, ``/tokenize`` and ``/detokenize``: texts without a chat."""

from __future__ import annotations

import asyncio
import codecs
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from pydantic import Field
from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk, Result, Step
from structgen.decode.step.result import spelled_text
from structgen.integrations.server.description import described
from structgen.integrations.server.protocol import Body, ChatRequest, Message, members, parsed, refuse_trace, sse, wrong
from structgen.integrations.server.scores import Answer, field_event, ranked, text_of, usage
from structgen.integrations.server.settings import task_of
from structgen.integrations.server.tools import Tools
from structgen.integrations.server.writing import Scored
from structgen.program.json_cursor import FieldEnd

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.integrations.server.description import Description
    from structgen.integrations.server.runner import Task
    from structgen.integrations.server.service import Service

__all__ = ["complete", "detokenize", "tokenize"]

_DEFAULT_TOKENS: Final = 16
"""As OpenAI's."""
_MAX_PROMPTS: Final = 128
_OF_CHATS: Final = {
    **dict.fromkeys(("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort"), "leave it out"),
    **dict.fromkeys(("top_logprobs", "chat_template_kwargs"), "leave it out"),
    "max_completion_tokens": "say it in max_tokens",
}
"""Fields that completions do not have, and what to do instead."""


class _Own(Body):
    """The fields of the body that a chat does not have, or has in another form."""

    prompt: Any
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


async def complete(service: Service, data: object) -> Response:
    """Answer ``POST /v1/completions``.

    Raises:
        APIError: the request cannot be done.
        StructgenError: its description cannot be enforced, or the answer cannot be completed.
    """
    own, request = _parsed(data)
    service.check_model(request.model)
    if own.echo and own.logprobs is not None:
        wrong("echo", "logprobs are of the answer alone; leave one of them out")
    prompts, count = _prompts(own), request.n or 1

    def prepared() -> tuple[Description, list[Task]]:
        description = described(request, service.limits, service.policy)
        made: list[Task] = []
        for prompt in prompts:
            tokens = _tokens(service, prompt)
            limit, is_stated = own.max_tokens or _DEFAULT_TOKENS, own.max_tokens is not None
            limit = service.max_answer_tokens(len(tokens), limit, is_stated=is_stated, param="prompt")
            task = task_of(service, request, description, tokens, limit, top=own.logprobs)
            made += [replace(task, seed=task.seed + len(made) + index) for index in range(count)]
        return description, made

    with service.runner.admitted(count * len(prompts)):
        description, tasks = await asyncio.to_thread(prepared)
    answer = _Completion(service, own, request, description)
    headers = service.headers(request, description)
    if request.stream:
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        return sse(answer.streamed(tasks, wants_usage=wants_usage), headers=headers)
    return JSONResponse(answer.whole(tasks, await service.answers(tasks)), headers=headers)


def _parsed(data: object) -> tuple[_Own, ChatRequest]:
    """Read a body: its own fields, and those that it shares with chats."""
    fields = members(data)
    own = {name: value for name, value in fields.items() if name in _Own.model_fields}
    for name, instead in _OF_CHATS.items():
        if fields.get(name) is not None:
            wrong(name, f"it is a field of chats; {instead}", code="unsupported_parameter")
    shared = {name: value for name, value in fields.items() if name not in own and name not in _OF_CHATS}
    request = parsed(ChatRequest, {**shared, "messages": [{"role": "user", "content": ""}]})
    refuse_trace(request)
    return parsed(_Own, own), request


def _prompts(own: _Own) -> list[str | list[int]]:
    """The prompts, as texts or token ids.

    Raises:
        APIError: one is empty or something else.
    """
    given = own.prompt
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and type(given[0]) is int)
    each = [given] if is_one else given
    if not isinstance(each, list) or not 0 < len(each) <= _MAX_PROMPTS:
        wrong("prompt", f"expected a text, token ids, or a list of 1 to {_MAX_PROMPTS} of these")
    for prompt in each:
        if not isinstance(prompt, str) and not (
            isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt)
        ):
            wrong("prompt", "expected texts, or lists of at least one token id")
    return each


def _tokens(service: Service, prompt: str | list[int]) -> tuple[int, ...]:
    """The tokens of a prompt; in a thread, for a long text takes a while.

    Raises:
        APIError: it has an id that the model lacks.
    """
    if isinstance(prompt, str):
        return tuple(service.model.encode_prompt(prompt, chat=False))
    return checked_ids(service, prompt, "prompt")


def checked_ids(service: Service, ids: Any, param: str) -> tuple[int, ...]:
    """Token ids that the model has.

    Raises:
        APIError: there is another one.
    """
    size = service.model.vocabulary.size
    unknown = next((token for token in ids if not 0 <= token < size), None)
    if unknown is not None:
        wrong(param, f"there is no token {unknown}; ids run from 0 to {size - 1}")
    return tuple(ids)


@final
class _Completion:
    """The objects of one answer."""

    def __init__(self, service: Service, own: _Own, request: ChatRequest, description: Description) -> None:
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.name,
        }
        self._service = service
        self._own = own
        self._description = description
        self._has_report = request.structgen is not None
        report = description.report_for(request)
        self._extra = {"structgen": report} if report else {}

    def _prompt_text(self, task: Task) -> str:
        """The text that ``echo`` puts before an answer."""
        return spelled_text(self._service.model.vocabulary, task.tokens) if self._own.echo else ""

    def whole(self, tasks: Sequence[Task], answers: Sequence[Answer]) -> dict[str, Any]:
        """The answer as a whole."""
        choices = [
            self._choice(
                index,
                self._prompt_text(task) + answer.result.text,
                finish_reason=self._description.finish_reason(answer.result),
                steps=answer.steps,
                report=answer.report(task, in_full=self._has_report),
            )
            for index, (task, answer) in enumerate(zip(tasks, answers, strict=True))
        ]
        return {**self._head, "choices": choices, "usage": usage(tasks, answers), **self._extra}

    async def streamed(self, tasks: Sequence[Task], *, wants_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream."""
        answers = [Answer(self._service.model.vocabulary) for _ in tasks]
        for index, task in enumerate(tasks):
            if self._own.echo:
                yield self._chunk(index, self._prompt_text(task))
        if self._extra:
            yield {**self._head, "choices": [], **self._extra}
        async for index, item in self._service.merged(tasks):
            before = len(answers[index].steps)
            answers[index].note(item)
            match item:
                case Chunk() if item.text:
                    yield self._chunk(index, item.text)
                case Scored() if self._own.logprobs is not None:
                    yield self._chunk(index, "", steps=answers[index].steps, start=before)
                case FieldEnd():
                    yield self._chunk(index, "", report={"events": [field_event(item)]})
                case Result():
                    report = answers[index].report(tasks[index], in_full=self._has_report)
                    yield self._chunk(index, "", finish_reason=self._description.finish_reason(item), report=report)
        if wants_usage:
            yield {**self._head, "choices": [], "usage": usage(tasks, answers)}

    def _chunk(self, index: int, text: str, **fields: Any) -> dict[str, Any]:
        return {**self._head, "choices": [self._choice(index, text, **fields)]}

    def _choice(
        self,
        index: int,
        text: str,
        *,
        finish_reason: str | None = None,
        steps: Sequence[Step] = (),
        start: int = 0,
        report: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        top = self._own.logprobs
        scores = None if top is None or not steps else _scores(self._service.model.vocabulary, steps, top, start)
        choice = {"index": index, "text": text, "logprobs": scores, "finish_reason": finish_reason}
        return choice if report is None else choice | {"structgen": report}


def _scores(vocabulary: Vocabulary, steps: Sequence[Step], top: int, start: int) -> dict[str, Any]:
    """The log-probabilities of tokens, in the form of completions, from step ``start`` on.

    Offsets are the characters that are complete before a token.
    """
    decoder, length = codecs.getincrementaldecoder("utf-8")("replace"), 0
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for at, step in enumerate(steps):
        if step.token is None:
            continue
        if at >= start:
            ((_, logprob, _),) = ranked(replace(step, alternatives=()), 1)
            found["tokens"].append(_name(vocabulary, step.token))
            found["token_logprobs"].append(logprob)
            best = {_name(vocabulary, token): share for token, share, _ in ranked(step, top)}
            found["top_logprobs"].append(best)
            found["text_offset"].append(length)
        length += len(decoder.decode(vocabulary.tokens[step.token]))
    return found


def _name(vocabulary: Vocabulary, token: int) -> str:
    r"""A token as text; one that is a part of a character as OpenAI's interface writes it, ``bytes:\xc3``."""
    data = vocabulary.tokens[token]
    try:
        return vocabulary.special.get(token) or data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class _TokenizeRequest(Body):
    """The body of ``/tokenize``: a text, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    return_token_strs: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


async def tokenize(service: Service, data: object) -> Response:
    """Answer ``POST /tokenize``, in the form of vLLM's server.

    Raises:
        APIError: the request cannot be done.
    """
    request = parsed(_TokenizeRequest, data)
    service.check_model(request.model)
    if (request.prompt is None) == (request.messages is None):
        wrong("prompt", "expected either prompt or messages")
    vocabulary = service.model.vocabulary
    if request.messages is None and request.chat_template_kwargs is not None:
        wrong("chat_template_kwargs", "a text is not rendered by the chat template; leave it out")
    if request.messages is not None:
        messages = service.form.prompt(request.messages, Tools(), request.chat_template_kwargs)
        tokens = await asyncio.to_thread(service.model.encode_prompt, messages)
    elif request.add_special_tokens is False:
        tokens = await asyncio.to_thread(vocabulary.tokenize, request.prompt or "")
    else:
        tokens = await asyncio.to_thread(service.model.encode_prompt, request.prompt or "", chat=False)
    held = {"count": len(tokens), "max_model_len": service.model.max_context, "tokens": list(tokens)}
    strings = [text_of(vocabulary, token) for token in tokens] if request.return_token_strs else None
    return JSONResponse({**held, "token_strs": strings})


class _DetokenizeRequest(Body):
    """The body of ``/detokenize``."""

    model: str | None = None
    tokens: list[int]


async def detokenize(service: Service, data: object) -> Response:
    """Answer ``POST /detokenize``, in the form of vLLM's server.

    Raises:
        APIError: the request cannot be done.
    """
    request = parsed(_DetokenizeRequest, data)
    service.check_model(request.model)
    tokens = checked_ids(service, request.tokens, "tokens")
    return JSONResponse({"prompt": spelled_text(service.model.vocabulary, tokens)})
