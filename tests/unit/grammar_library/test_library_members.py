"""Strings of the grammar library and real documents, judged by parsers that are independent of structgen."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from checked_language import language
from grammar_library import NAMES, folder, mutations, walked_member

EFFORTS = [pytest.param(200, 30, id="ci"), pytest.param(2000, 120, id="nightly", marks=pytest.mark.nightly)]
BY_NAME = pytest.mark.parametrize("name", NAMES)
BY_EFFORT = pytest.mark.parametrize(("count", "most"), EFFORTS)


@BY_NAME
@BY_EFFORT
def test_walked_members_parse(name: str, count: int, most: int) -> None:
    """The parser of the language reads the results of random walks."""
    known, rng = language(name), random.Random(f"{name} walks")
    known.check([walked_member(folder(name).constraint, rng, rng.randint(1, most)) for _ in range(count)])


@BY_NAME
def test_cases_parse(name: str) -> None:
    """The parser of the language reads the accepted cases, and refuses the refused ones that are covered."""
    known = language(name)
    known.check(list(folder(name).accept))
    reject = [text for text, _ in folder(name).reject][: 4 if known.problems else None]  # one run of a compiler each
    wrong = [text for text in reject if known.problem(text) is not None]
    assert len(wrong) >= len(reject) // 2  # the parser finds faults too; the folder excludes the rest
    if known.covers is not None:
        for text, _ in folder(name).reject:
            assert known.problem(text) is not None or not known.covers(text), text


@BY_NAME
@BY_EFFORT
def test_real_documents_are_members(name: str, count: int, most: int) -> None:
    """Independent documents that the language's parser reads are accepted."""
    known, rng = language(name), random.Random(f"{name} documents")
    documents = list(islice(known.documents(rng), count))
    assert len(documents) >= min(count, 200)
    known.check(documents)
    for text in documents:
        matcher, data = folder(name).constraint.matcher(), text.encode()
        read = matcher.accept_bytes(data)
        assert read == len(data), (text, data[read : read + 40])
        assert matcher.is_accepting, text


@BY_NAME
@BY_EFFORT
def test_spoilt_texts(name: str, count: int, most: int) -> None:
    """After small changes, accepted texts parse, and texts that parse are accepted, if they are covered."""
    known, rng, cases = language(name), random.Random(f"{name} spoilt"), folder(name)
    alphabet = "".join(sorted({*"".join(cases.accept), *"".join(text for text, _ in cases.reject), *known.alphabet}))
    members, others = [], []
    for _ in range(count // 10):
        for spoilt in mutations(rng, rng.choice(cases.accept), alphabet, 40):
            (members if cases.accepts(spoilt) else others).append(spoilt)
    assert min(len(members), len(others)) > count // 40
    known.check(members)
    if known.covers is not None:
        assert not [text for text in members if known.covers(text) is False]
        for text in others:
            assert known.problem(text) is not None or not known.covers(text), text
