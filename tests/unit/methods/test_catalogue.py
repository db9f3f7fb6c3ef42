"""The table of methods agrees with the public modules, and the core does not need it."""

from __future__ import annotations

import importlib
from dataclasses import is_dataclass
from pathlib import Path

import drafter_catalogue
import pytest

import structgen
from structgen.lazy import stub_names
from structgen.methods import catalogue
from structgen.methods.catalogue import Method

PACKAGE = Path(structgen.__file__).parent
TABLES = {name: table for name in catalogue.__all__ if isinstance(table := getattr(catalogue, name), dict)}
ENTRIES = [(table, name, method) for table, methods in TABLES.items() for name, method in methods.items()]


@pytest.mark.parametrize(("table", "name", "method"), ENTRIES, ids=[f"{table}-{name}" for table, name, _ in ENTRIES])
def test_every_entry_names_a_dataclass_of_a_public_module(table: str, name: str, method: Method) -> None:
    kind = getattr(importlib.import_module(method.module), method.kind)
    assert is_dataclass(kind)
    assert method.counted is None or method.counted in kind.__dataclass_fields__


def test_every_drafter_that_needs_no_object_is_in_the_table() -> None:
    """All others need a trained head or a vocabulary, or combine drafters."""
    named = {method.kind for method in (*catalogue.DRAFTERS.values(), *catalogue.BRIDGES.values())}
    offered = set(stub_names(PACKAGE / "drafters.pyi"))
    beside = {"Auto", "Bridge", "Combined", "DraftStore", "Extended", "TrainedHeads", "VocabularyTrim", "forget"}
    assert offered - named == beside | {"CostModel", "DraftStats", "Speculation"}


@pytest.mark.parametrize("name", catalogue.DRAFTERS)
def test_every_drafter_has_a_case(name: str) -> None:
    """The tests that ask something of all drafters ask it of this one."""
    kind = catalogue.DRAFTERS[name].kind
    source = Path(drafter_catalogue.__file__).read_text(encoding="utf-8")
    assert f" {kind}(" in source or f"({kind}(" in source, f"add a case of {kind} to {drafter_catalogue.__file__}"


def test_every_sampler_is_in_the_table() -> None:
    named = {method.kind for method in catalogue.SAMPLERS.values()}
    offered = set(stub_names(PACKAGE / "samplers.pyi"))
    assert offered - named == {"Sampler", "Samples", "Lookahead", "NGram"}  # protocols, values and twists


def test_the_pages_name_every_method() -> None:
    """The documentation of the command line lists the values of the options."""
    page = PACKAGE.parent / "docs" / "reference" / "cli.md"
    if not page.is_file():
        pytest.skip("the documents are not beside the package")
    text = page.read_text(encoding="utf-8")
    for name in (*catalogue.DRAFTERS, *catalogue.SAMPLERS, *catalogue.COMMIT_POLICIES, *catalogue.REUSES):
        assert f"`{name}" in text or f", {name}" in text or f"{name}," in text, name
