"""The examples of docs/infilling.md run and print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[4] / "docs" / "infilling.md"


def test_examples_run() -> None:
    """Every example, in order, in one namespace."""
    if not PAGE.is_file():
        pytest.skip(f"the documents are not beside the tests: no {PAGE}")
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 10
    assert not failed
