"""``structgen serve``: an HTTP server with OpenAI's interface."""

from __future__ import annotations

import gc
import importlib.util
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final, get_args

import click

from structgen.cli.command import Command, complete_device, complete_models
from structgen.cli.model_option import EMBEDDED, RUNTIMES, decoder_of, diffusion_model_of, model_of
from structgen.cli.run_option import Decoder
from structgen.cli.terminal import DONE, UNUSABLE, Failure
from structgen.errors import ModelError, install
from structgen.heap import restart_with_malloc, share_heaps
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from structgen.decode import AnyModel
    from structgen.models import Runtime

__all__ = ["serve"]

_GRACE_S: Final = 30
_SWITCH_S: Final = 0.0005
"""How long a thread that chooses tokens may hold up the loop that sends them; Python's default is ten times as long.

Beside 16 answers of a model that costs little, ``/health`` takes a twelfth less (median and 90 %, of 6,100 each in
turns, in each of three runs), and a token no more processor time.
"""
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@click.command(
    cls=Command,
    groups={
        "Model": ("model", "decoder", "device", "runtime", "tool_family", "trust_remote_code"),
        "Server": (
            *("host", "port", "api_key", "allow_origin", "max_running", "max_queue", "time_limit", "limits"),
            "quiet",
        ),
    },
    examples=("structgen serve", "structgen serve --model model.gguf --port 9000 --api-key secret"),
)
@click.option(
    "--model",
    metavar="M",
    shell_complete=complete_models,
    help="A hub id, folder or GGUF file.  [default: the embedded model]",
)
@click.option(
    "--decoder",
    type=click.Choice(get_args(Decoder)),
    help="The model writes token by token, or it is a diffusion model that fills canvases.  [default: by its files]",
)
@click.option(
    "--device",
    metavar="D",
    shell_complete=complete_device,
    default="auto",
    show_default=True,
    help="Where the model runs: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.",
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="What runs the model.  [default: torch for the embedded model, llama.cpp for GGUF files, if they can]",
)
@click.option(
    "--tool-family",
    metavar="F",
    help="The form of tool calls: plain, hermes, llama3 ...  [default: the one of the model's chat template, or plain]",
)
@click.option("--trust-remote-code", is_flag=True, help="Run the code that comes with a diffusion model's files.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="The port; 0: any free one.",
)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="STRUCTGEN_API_KEY",
    help="The key that clients must send.  [env: STRUCTGEN_API_KEY]",
)
@click.option("--allow-origin", multiple=True, metavar="URL", help="Pages whose scripts may ask; *: all.")
@click.option(
    "--max-running",
    metavar="N",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Answers written at once.",
)
@click.option(
    "--max-queue", metavar="N", type=click.IntRange(0), default=64, show_default=True, help="Answers that may wait."
)
@click.option(
    "--time-limit",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Seconds for an answer.  [default: none]",
)
@click.option("--quiet", is_flag=True, help="Write no line for each request.")
@click.option(
    "--limits",
    type=click.Choice(("strict", "default")),
    default="strict",
    show_default=True,
    help="Bounds on the work for a schema or grammar: 50 ms, or 500 ms.",
)
def serve(  # noqa: PLR0913  its options
    *,
    model: str | None,
    decoder: Decoder | None,
    trust_remote_code: bool,
    device: str,
    runtime: Runtime | None,
    tool_family: str | None,
    host: str,
    port: int,
    api_key: str | None,
    max_running: int,
    max_queue: int,
    time_limit: float | None,
    quiet: bool,
    allow_origin: tuple[str, ...],
    limits: str,
) -> int:
    """Serve a model over HTTP, with OpenAI's interface.

    Clients of OpenAI's API work as they are, with base_url="http://127.0.0.1:8000/v1".
    """
    if click.get_current_context().find_object(bool):
        restart_with_malloc()
    try:
        from structgen.integrations.server.listening import Server
    except ImportError as error:
        raise ModelError(
            "structgen serve", "a package is missing", evidence=str(error), remedy=install("server")
        ) from None
    from structgen.grammar.limits import Limits
    from structgen.integrations.server.app import application
    from structgen.integrations.server.runner import Runner
    from structgen.integrations.server.service import Service

    def load() -> AnyModel:
        progress = ProgressBar()
        if decoder == "diffusion":
            return diffusion_model_of(model, progress, trust_remote_code=trust_remote_code, device=device)
        return model_of(model or EMBEDDED, progress, device=device, runtime=runtime or _runtime(model))

    if decoder is None:
        decoder = decoder_of(model, ProgressBar())
    if decoder == "diffusion" and runtime is not None:
        raise click.UsageError("--runtime: torch runs diffusion models; leave it out")
    if decoder == "autoregressive" and trust_remote_code:
        raise click.UsageError("--trust-remote-code: models that write token by token run no code of their files")
    share_heaps()  # each answer has a thread
    with _listening(host, port) as listening:
        loaded = load()
        runner = Runner(loaded, max_running=max_running, max_queue=max_queue, time_limit_s=time_limit)
        bounds = Limits.strict() if limits == "strict" else Limits()
        if decoder == "diffusion":  # strictly, no canvas of any JSON is filled
            bounds = replace(bounds, canvas_steps=Limits().canvas_steps)
        service = Service(loaded, loaded.name, runner, bounds, tool_family)
        _ = service.form  # a wrong family ends the command here
        app = application(service, api_key=api_key, allow_origin=allow_origin)
        port = listening.getsockname()[1]
        _log(only_errors=quiet)
        sys.setswitchinterval(_SWITCH_S)
        gc.collect()
        gc.freeze()  # what is loaded stays: later collections pass only over what requests have made
        click.echo(_greeting(service.name, host, port, has_key=api_key is not None), err=True)
        Server(app, runner, grace_s=_GRACE_S).run(sockets=[listening])
    return DONE


def _runtime(model: str | None) -> Runtime:
    """What runs the model by default.

    One client of the embedded model gets as many tokens a second from torch as from llama.cpp, four to sixteen clients
    1.6 to 1.8 times as many (benchmarks/record/servers.md), where torch has products of 8 bits.
    """
    if model not in {None, EMBEDDED} or importlib.util.find_spec("torch") is None:
        return "auto"
    import torch

    from structgen.models.products import runs_int8

    return "torch" if runs_int8(torch.device("cpu")) else "auto"


def _listening(host: str, port: int) -> socket.socket:
    """Listen at an address, before the model is loaded.

    Raises:
        Failure: it is in use, or not of this machine.
    """
    from structgen.integrations.server.listening import listen

    try:
        return listen(host, port)
    except OSError as error:
        problem = error.strerror or error
        raise Failure(
            f"cannot listen at {host}:{port}: {problem}; choose another one with --host and --port (0: any free port)",
            UNUSABLE,
        ) from None


def _log(*, only_errors: bool) -> None:
    """Write what the server logs to standard error: a line for each request, and what went wrong."""
    import logging

    from structgen.log import logger

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR if only_errors else logging.INFO)


def _greeting(model: str, host: str, port: int, *, has_key: bool) -> str:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    reach = "this machine only" if host in _LOOPBACK else "every machine that reaches this address"
    key = ' -H "Authorization: Bearer $STRUCTGEN_API_KEY"' if has_key else ""
    schema = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    return f"""structgen serves {model}, for {reach}{"" if has_key else ", without a key"}

  interface   {url}/v1   (OpenAI's: base_url of any client)
  try it      {url}/     (a page for the browser)
  metrics     {url}/metrics

  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{{
    "messages": [{{"role": "user", "content": "Name a city in France."}}],
    "max_tokens": 40,
    "response_format": {{"type": "json_schema", "json_schema": {{"name": "answer", "schema":
      {schema}}}}}}}'

Ctrl-C stops it."""
