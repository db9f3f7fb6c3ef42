"""The tasks of the soak run, and what is wrong with an output or a task is found."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema_rs")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import soak
from soak_sources import Source, Workbench, verdict
from soak_tasks import TASKS

import structgen as sg


@pytest.fixture(scope="module")
def bench() -> Workbench:
    """Without a real vocabulary and the embedded model, which take long to load, and with generated schemas alone."""
    made = Workbench(0, has_embedded=False)
    vars(made).update(real_vocabulary=made.vocabulary, schemas=[])
    return made


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_each_task_runs(bench: Workbench, task: Callable[..., Any]) -> None:
    ledger = soak.Ledger()
    for seed in (1, 2):
        soak.run_task(task, bench, seed, ledger, is_main=False)
    assert ledger.findings == []
    assert sum(ledger.tasks.values()) == 2
    assert set(ledger.verdicts[task.__name__]) <= {"valid"}


def test_what_is_wrong_is_found(bench: Workbench) -> None:
    """An output that the validator refuses, a foreign error, and a message that only a mistake brings."""
    sources = [bench.source(random.Random(seed), kind) for seed, kind in enumerate("srl")]
    assert [verdict((source, "\0")) for source in sources] == ["invalid"] * 3
    lax = Source("regex", "[ab]+", sg.regex("[ab]+"), lambda text: re.fullmatch("a+", text) is not None)

    def wrong(_bench: Workbench, rng: random.Random) -> list[tuple[Source, str]]:
        match rng.randrange(4):
            case 0:
                return [(lax, "ab"), (lax, "aa")]
            case 1:
                raise IndexError("by mistake")
            case 2:
                raise sg.errors.GenerationError("matcher", "it refuses token 3, which its own mask allows")
        raise sg.errors.GrammarError("regex", "refused")

    ledger = soak.Ledger()
    for seed in range(40):
        soak.run_task(wrong, bench, seed, ledger, is_main=False)
    kinds = {name: sum(name in finding for finding in ledger.findings) for name in ("admit 'ab'", "IndexError", "mask")}
    assert min(kinds.values()) > 0
    assert len(ledger.findings) == sum(kinds.values()) < 40
    counts = ledger.verdicts["wrong"]
    assert counts["valid"] == counts["invalid"] == kinds["admit 'ab'"]
    soak.look(0.0, ledger)
    soak.look(0.0, ledger)
    text = soak.report(ledger, 1.0, 0, bench)
    assert f"{counts['invalid']} invalid**" in text
    assert f"Findings: {len(ledger.findings)}" in text
