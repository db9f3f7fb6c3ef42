"""The examples of docs/guides/extraction.md and docs/guides/tools.md run."""

from __future__ import annotations

import json

import pytest
from docs_run import PageRun, run_page, stand_in

from structgen.engine import Vocabulary
from structgen.models import HashModel

ADA = '{"name": "Ada Lovelace", "born": "London", "age": 36}'


def _names_after(page: str, wishes: list[str], vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> PageRun:
    """Run every Python block by itself, each on a model that prefers its own text."""

    def before(number: int) -> None:
        stand_in(monkeypatch, HashModel(vocabulary, writes=wishes[number]))

    names = run_page(page, before=before)
    assert names.blocks == len(wishes)
    return names


def test_extraction(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    lives = ADA.replace("born", "city")
    writes = '{"sender": "Ada Lovelace", "summary": "she was young"}'
    names = _names_after("guides/extraction.md", [lives, *["36"] * 5, ADA, writes, ADA], json_vocabulary, monkeypatch)
    assert names["person"].city == "London"
    assert isinstance(names["people"], list)
    assert names["places"] == {"name": ("Ada Lovelace", 0, 12), "born": ("London", 22, 28)}
    assert names["spans"] == ["Ada Lovelace", "London", "London"]
    assert (names["read"].sender, names["read"].summary) == ("Ada Lovelace", "she was young")
    assert list(names["known"]) == ["name", "born"]
    assert all(0 < probability <= 1 for probability in names["known"].values())


def test_tools(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    call = '{"tool": "count", "arguments": {"fruit": "apples"}}'
    prices = [{"tool": "price", "arguments": {"fruit": fruit}} for fruit in ("apple", "pear")]
    wishes = [call, *[call] * 5, json.dumps({"calls": prices})]
    names = _names_after("guides/tools.md", wishes, json_vocabulary, monkeypatch)
    assert [each.arguments["fruit"] for each in names["bought"].calls] == ["apple", "pear"] * 2
    result = names["result"]
    assert result.is_forced
    assert [(each.tool, each.arguments, each.result) for each in result.calls] == [
        ("count", {"fruit": "apples"}, 3)
    ] * 3
    assert names["count"].call({"fruit": "pears"}) == 0
