"""A vLLM server with structgen as its backend, and what is asked of it.

The model has the tokenizer and the form of the embedded model in two small layers of noise, so that all that is right
in an answer is due to the constraint, and a token takes little time.  STRUCTGEN_VLLM_MODEL names the folder; without
it, it is looked for where structgen keeps it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

NAME = "noise"
LONGEST_START_S = 800.0
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without vLLM there is nothing to test."""
    if importlib.util.find_spec("vllm") is None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="vllm is not installed here; `make engines` makes its environment"))


@pytest.fixture(scope="session")
def folder() -> str:
    """The folder of a model."""
    named = os.environ.get("STRUCTGEN_VLLM_MODEL")
    if named is not None:
        return named
    found = Path.home() / ".cache/structgen/models/smollm2-135m-instruct"
    if not found.is_dir():
        pytest.skip("STRUCTGEN_VLLM_MODEL names no folder of a model, and structgen keeps none")
    return str(found)


@pytest.fixture(scope="session")
def thinking(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with two of its special tokens as those around thoughts."""
    made, source = tmp_path_factory.mktemp("thinking"), Path(folder)
    for name in ("chat_template.jinja", "config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(source / name, made)
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    names = {4: "<think>", 5: "</think>"}
    for token in tokenizer["added_tokens"]:
        if token["id"] in names:
            vocabulary = tokenizer["model"]["vocab"]
            vocabulary[names[token["id"]]] = vocabulary.pop(token["content"])
            token.update(content=names[token["id"]], special=False)
    (made / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return str(made)


class Server:
    """A server that runs.

    Attributes:
        address: without a path.
        log: what it has said.
        process: the id of its process, which leads a session.
    """

    def __init__(self, address: str, log: Path, process: int) -> None:
        self.address = address
        self.log = log
        self.process = process

    def resident(self) -> int:
        """The memory of all its processes that no other has, in bytes."""
        found = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                if int(status.read_text().rpartition(")")[2].split()[3]) == self.process:
                    lines = status.with_name("smaps_rollup").read_text().splitlines()
                    found += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
        return found

    def ask(self, path: str = "/v1/chat/completions", **body: Any) -> tuple[int, Any]:
        """The status and the body of the answer."""
        import httpx

        said = {"messages": [{"role": "user", "content": "?"}]} if path.endswith("chat/completions") else {}
        default = {"model": NAME, "temperature": 1.0, "max_tokens": 60, **said}
        answer = httpx.post(self.address + path, json={**default, **body}, timeout=600)
        return answer.status_code, answer.json()

    def metric(self, name: str) -> float:
        """The value of a counter that vLLM exports."""
        import httpx

        lines = httpx.get(f"{self.address}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))


@pytest.fixture(scope="session")
def start(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start a server with options and environment variables; it ends with the tests."""
    with _starting(folder, tmp_path_factory) as started:
        yield started


@pytest.fixture
def start_for_test(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """The same; the server ends with the test, and its memory is free."""
    with _starting(folder, tmp_path_factory) as started:
        yield started


@contextlib.contextmanager
def _starting(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as running:

        def started(*options: str, of: str = folder, **variables: str) -> Server:
            log = tmp_path_factory.mktemp("vllm") / "log"
            return running.enter_context(_running(of, log, options, variables))

        yield started


def _metadata(folder: Path) -> Path:
    """A path with metadata of a distribution ``vllm``, whose version its command asks for.

    The build for CPUs is the distribution ``vllm-cpu``, so that its own command ends at once.
    """
    made = folder / "metadata" / f"vllm-{version('vllm-cpu')}+cpu.dist-info"
    made.mkdir(parents=True)
    said = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n"
    (made / "METADATA").write_text(said, encoding="utf-8")
    return made.parent


@contextlib.contextmanager
def _running(folder: str, log: Path, options: tuple[str, ...], variables: dict[str, str]) -> Iterator[Server]:
    import httpx

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", folder]
    paths = [str(_metadata(log.parent)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    command += ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"]
    command += ["--enforce-eager", "--dtype", "float32", "--load-format", "dummy", "--hf-overrides", json.dumps(SMALL)]
    with log.open("wb") as written:
        server = subprocess.Popen(
            [*command, *options],
            stdout=written,
            stderr=written,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths).rstrip(os.pathsep), **variables},
            start_new_session=True,  # its workers end with it
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + LONGEST_START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                    break
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text(errors="replace")[-6000:])
            time.sleep(1)
        yield Server(address, log, server.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
