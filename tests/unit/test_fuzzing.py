"""The fuzz targets run without a fuzzer: on all that is short in their corpora, and on a few mutations."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "fuzz"
sys.path.append(str(FOLDER))

import targets  # noqa: E402  # needs the folder

from structgen.engine import Matcher  # noqa: E402

TARGETS = targets.by_name()
SEEDS = {"json_schema": 40, "regex": 60, "bnf": 40, "chat": 12, "differential": 8}
"""How many seeds of a target are replayed here, else 20; the fuzzer runs all of them."""
MUTATIONS = 24


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")  # Python's, about the regexps of a grammar
@pytest.mark.parametrize("name", TARGETS)
def test_targets_run(name: str) -> None:
    """Seeds and mutations of them end as the target allows, and most of what is mutated is more than refused."""
    target, known, rng = TARGETS[name], targets.seeds(name), random.Random(name)
    assert len(known) >= 8
    for data in rng.sample(known, min(len(known), SEEDS.get(name, 20))):
        target(data)
    target.outcomes.clear()
    for _ in range(MUTATIONS):
        target(target.mutate(rng.choice(known), known, rng))
    useless = sum(target.outcomes[outcome] for outcome in ("refused", "no document", "no files", "limit", "empty"))
    assert useless <= 16, target.outcomes


def test_corpora_are_small() -> None:
    """Each seed stands once in its corpus, and all corpora together are under 2 MB."""
    assert sum(path.stat().st_size for path in targets.CORPUS.iterdir()) < 2_000_000
    for path in targets.CORPUS.iterdir():
        known = targets.seeds(path.stem)
        assert len(set(known)) == len(known) > 0, path


@pytest.mark.parametrize("fault", ["a bit too few", "a bit too many", "a rollback that forgets nothing"])
def test_the_differential_target_sees_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells masks and matchers that are wrong."""
    fill, rollback = Matcher.fill_mask, Matcher.rollback

    def wrong_mask(self: Matcher, bitmask: object, row: int = 0, **options: object) -> None:
        fill(self, bitmask, row, **options)
        word = bitmask[row]  # type: ignore[index]
        if fault == "a bit too few":
            word[0] &= ~4  # the letter a
        else:
            word[0] |= 8

    if "bit" in fault:
        monkeypatch.setattr(Matcher, "fill_mask", wrong_mask)
    else:
        monkeypatch.setattr(Matcher, "rollback", lambda self, count: rollback(self, count - 1))
    found = 0
    for data in targets.seeds("differential")[:12]:
        try:
            TARGETS["differential"](data)
        except targets.Finding:
            found += 1
    assert found >= 3


def test_a_slow_input_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time of one input is bounded."""
    monkeypatch.setattr(targets, "MOST_SECONDS", 0.0)
    with pytest.raises(targets.Finding, match="regex: "):
        TARGETS["regex"](b"aab")
