"""Schemas that ask for too much end with a result or a clear error, in little time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_schemas import ADDRESS_SPACE, SCHEMAS

SECONDS = 2.0
PROGRAM = Path(__file__).resolve().parents[2] / "support" / "limits" / "hostile_schemas.py"
ERRORS = {
    "a megabyte of properties": ("LimitExceeded", "json schema #", "grammar_nodes"),
    "a megabyte of pattern": ("LimitExceeded", "json schema #/pattern", "steps"),
    "nested oneOf of patterns": ("LimitExceeded", "json schema #/oneOf/0", "steps"),
    "product of requirements": ("LimitExceeded", "json schema #/allOf/", "grammar_nodes"),
    "product of objects": ("LimitExceeded", "json schema #/allOf/", "grammar_nodes"),
    "product of patterns": ("LimitExceeded", "engine", "steps"),
    "reference loop": ("UnsupportedFeature", "json schema #/$defs/d999/$ref", None),
    "reference loop of choices": ("UnsupportedFeature", "json schema #/$defs/", None),
    "conflicting drafts": ("GrammarError", "json schema #/items", None),
}
"""Class, place and limit of the error, for the schemas that have no result."""


def outcome(name: str) -> dict[str, Any]:
    """The result for a schema in its own process, which the system ends if it takes too much memory."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), name],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **threads},
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return dict(json.loads(done.stdout))


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer maps more than the bound on memory")
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_hostile_schemas_end_soon(name: str) -> None:
    """Reading, compiling, each mask and each token take two seconds at most, and together one gigabyte.

    Seconds are those of an idle machine: see ``slowness``.
    """
    found = outcome(name)
    assert found["seconds"] <= SECONDS * found["slowness"]
    assert found["peak_bytes"] <= ADDRESS_SPACE
    assert found.get("error") == ERRORS.get(name, (None,))[0]
    if name in ERRORS:
        _, place, limit = ERRORS[name]
        assert found["message"].startswith(place)
        assert found["limit"] == limit
        assert limit is None or f"{limit}=" in found["message"]
        assert found.get("usable", True)
