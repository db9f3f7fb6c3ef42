"""The examples of docs/infilling.md run and print the documented output."""

from __future__ import annotations

import doctest

from docs_run import page_path


def test_examples_run() -> None:
    """Every example runs, in order, in one namespace."""
    failed, tried = doctest.testfile(str(page_path("infilling.md")), module_relative=False)
    assert tried > 10
    assert not failed
