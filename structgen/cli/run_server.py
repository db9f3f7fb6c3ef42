"""``structgen run --model http://host:8000/v1``: a description on a model on a server."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.grammar_source import SourceOptions, compile_source, read_source
from structgen.cli.run_program import follow, run_quietly
from structgen.cli.run_prompts import PromptLine, prompt_of, read_lines, write_rows
from structgen.cli.terminal import DONE
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from threading import Event

    from structgen.cli.grammar_source import GrammarSource
    from structgen.cli.run_option import Request
    from structgen.decode import AnySampler
    from structgen.integrations.openai_server import OpenAIServer
    from structgen.program import Answer, Program, Run
    from structgen.program.execution import AnyModel

__all__ = ["API_KEY", "check_served", "run_on_server", "server_of"]

API_KEY: Final = "STRUCTGEN_API_KEY"
"""The environment variable with the key that is sent to the server."""

_SERVER: Final = "a model on a server"
_NOT_SERVED: Final = {
    "runtime": "the server has its own; leave it out",
    "chat_template": "the server has its own; leave it out",
    "drafter": "the server drafts by itself; leave it out",
    "canonical": "the server chooses the tokens; leave it out",
    "potential": "the server does not tell how probable each token is; leave it out",
    "weights": "the server does not tell how probable each token is; leave it out",
    "trust_remote_code": "the server has the model's files; leave it out",
}


def check_served(request: Request) -> None:
    """Refuse options that a server has no use for.

    Raises:
        click.UsageError: one is given.
    """
    request.refuse(_NOT_SERVED, by=_SERVER)
    if request.device != "auto":
        raise click.UsageError(f"--device is not for {_SERVER}: it runs where the server says; leave it out")


def server_of(model: str, model_name: str | None) -> OpenAIServer:
    """Return the model that ``--model ADDRESS`` and ``--model-name NAME``, or ``--model ADDRESS#NAME``, name.

    Raises:
        click.UsageError: the name is missing, or given twice.
        ModelError: ``httpx`` is not installed.
    """
    from structgen.integrations.openai_server import remote

    address, _, after = model.partition("#")
    if after and model_name is not None:
        raise click.UsageError("--model ADDRESS#NAME and --model-name both name the model: give one of them")
    name = model_name or after
    if not name:
        raise click.UsageError(f"--model {address}: add --model-name NAME, the name that the server has for the model")
    return remote(address, name, api_key=os.environ.get(API_KEY) or None)


def run_on_server(path: str | None, source: SourceOptions, request: Request, sampler: AnySampler, outputs: int) -> int:
    """Let a server write strings of a description.

    Raises:
        click.UsageError: options do not fit each other.
        Failure: a file cannot be read, or the user has interrupted.
        StructgenError: as ``Program.run`` on a server.
    """
    prompt = None if request.prompts is not None else request.read_prompt(path)
    read = read_source(path, source)
    compile_source(read)  # refuses what is wrong before anything is sent
    answer = _answer_of(read)
    settings = {"sampler": sampler, "max_tokens": request.max_tokens}
    with server_of(str(request.model), request.model_name) as model:
        if request.prompts is not None:

            def write(line: PromptLine, model: AnyModel, stopped: Event) -> dict[str, Any]:
                program = _program_of(answer, prompt_of(line, request), request)
                return _values(run_quietly(program, settings, request, line, model, stopped))

            return write_rows(request, read_lines(request.prompts, "prompt", plain=str), lambda: (model, write))
        progress = ProgressBar()
        program = _program_of(answer, prompt, request)
        for seed in range(request.seed, request.seed + outputs):
            try:
                arguments = {**settings, "seed": seed, "model": model}
                run = follow(program, arguments, progress, stream=request.stream, shows_prompt=False)
            finally:
                progress.close()
            if request.as_json:
                click.echo(json.dumps(_values(run), ensure_ascii=False))
            else:
                click.echo("" if request.stream else run.outcomes[-1].text)
    return DONE


def _answer_of(read: GrammarSource) -> Answer:
    """The constraint that is sent to the server: a schema unchanged, everything else as a grammar."""
    from structgen.program import answer_of
    from structgen.program.answer import Answer

    if read.policy is None:
        return answer_of(read.grammar)
    from pydantic import TypeAdapter

    schema = json.loads(read.text)
    return Answer(schema, read.grammar, "json", TypeAdapter(Any), schema=schema, policy=read.policy)


def _program_of(answer: Answer, prompt: Any, request: Request) -> Program[..., Any]:
    from structgen.models.model_input import messages_of_prompt
    from structgen.program import program
    from structgen.program.command import TurnCommand

    def run() -> Generator[Any, Any, Any]:
        if request.no_chat:
            yield prompt
        else:
            for message in messages_of_prompt(prompt):
                yield TurnCommand(message["role"], message["content"])  # type: ignore[arg-type]  # the server judges
        return (yield answer)

    made: Program[..., Any] = program(chat=not request.no_chat, describe=False)(run)
    return made


def _values(run: Run[Any]) -> dict[str, Any]:
    """An output as values of JSON, without scores, which servers do not return."""
    (outcome,) = run.outcomes
    served: Any = outcome.result
    return {
        "text": served.text,
        "value": outcome.value,
        "finish_reason": served.finish_reason,
        "seed": run.seed,
        "requests": served.requests,
        "usage": {"prompt_tokens": served.prompt_tokens, "completion_tokens": served.tokens},
        "not_enforced": [str(loss) for loss in served.losses],
    }
