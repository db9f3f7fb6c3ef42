"""A server as users start it, and what is asked of it.

``STRUCTGEN_SERVE_COMMAND`` is the command of the server, ``.venv/bin/structgen serve`` by default.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator

import pytest
from asked import CHECKOUT

_CACHE = tempfile.TemporaryDirectory(prefix="dspy-")
# Nothing is fetched, nothing is told to anyone but the server, and no answer is that of an earlier run.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LANGSMITH_TRACING="false", DSPY_CACHEDIR=_CACHE.name)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the embedded model, which ends with the tests."""
    command = os.environ.get("STRUCTGEN_SERVE_COMMAND", shlex.quote(str(CHECKOUT / ".venv/bin/structgen")) + " serve")
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as written:
        server = subprocess.Popen([*shlex.split(command), "--port", "0"], stdout=written, stderr=written)
    try:
        while (found := re.search(r"interface +(http://\S+)/v1 ", log.read_text())) is None:
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        yield found[1]
        assert server.poll() is None, log.read_text()
    finally:
        server.terminate()
        server.wait(60)
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(scope="session")
def base_url(address: str) -> str:
    """What clients call their base URL."""
    return f"{address}/v1"
