"""The programs under examples/ run on the embedded model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"
SHOWN = {
    "agent.py": "answer: ",
    "batch.py": "id,item,quantity,needed\n1,",
    "classify.py": "%  It arrived on Tuesday.",
    "contact.py": "name: probability ",
    "evidence.py": "approved=",
    "report.py": "# honey bees\n* ",
    "streaming.py": "urgency = '",
}

pytestmark = pytest.mark.model


def test_all_are_run() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"the examples are not beside the tests: no {FOLDER}")
    assert sorted(path.name for path in FOLDER.glob("*.py")) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs(name: str) -> None:
    """Within a minute, and it shows what it is about."""
    if not FOLDER.is_dir():
        pytest.skip(f"the examples are not beside the tests: no {FOLDER}")
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert done.returncode == 0, done.stderr
    assert SHOWN[name] in done.stdout
