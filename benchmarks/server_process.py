"""Servers in processes of their own, for benchmarks: each writes a log file and is waited for until it answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

__all__ = ["Running", "free_port", "running", "structgen_command"]

START_S: Final = 600.0
END_S: Final = 60.0


@dataclass
class Running:
    """A server that answers.

    Attributes:
        process: the server.
        url: its address, without a path.
        log: the file of what it writes.
    """

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def end(self) -> int:
        """Ask it to end, and return its exit status; a server that does not end in time is killed.

        Raises:
            TimeoutExpired: it had to be killed.
        """
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise


def free_port() -> int:
    """A port of the loopback address that nothing listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def structgen_command(port: int, *options: str) -> list[str]:
    """The command line of ``structgen serve``."""
    return [sys.executable, "-m", "structgen.cli", "serve", "--port", str(port), *options]


@contextmanager
def running(
    command: Sequence[str], port: int, log: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Run a server that listens at a port until the block ends.

    Raises:
        RuntimeError: it ends, or does not answer ``/health`` in ten minutes; with the end of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:  # with workers of its own it ends as a group
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    held = Running(process, f"http://127.0.0.1:{port}", log)
    until = time.monotonic() + START_S
    try:
        while not _answers(f"{held.url}/health"):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not serve: {log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.5)
        yield held
    finally:
        held.end()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
