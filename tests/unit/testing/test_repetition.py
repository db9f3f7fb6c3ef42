"""Detection of repetition, by hand and by ``json``."""

from __future__ import annotations

import json
from itertools import product

import pytest

from structgen.testing.node_semantics import repeats


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1,1]", True),
        ("[1,1", False),  # more digits may follow
        ("[1,1 ", True),
        ('["a","a"', True),
        (r'["a","\u0061"', True),
        ("[1,1.0,", True),
        ("[10,1e1]", True),
        ("[0,-0.0]", True),
        ("[true,1]", False),
        ("[[1,1],[1]]", False),
        ("[[1],[1]", True),
        ('[{"a":1,"b":2},{"b":2,"a":1}]', True),
        ('{"a":1,"a"', True),
        ('{"a":1,"a', False),
        ('{"a":{"b":1,"b":2}}', True),
        ('{"a":[1,1]}', False),
        ('["a", "b"] ["a"]', False),  # the text after the array is not part of it
    ],
)
def test_repetitions(text: str, expected: bool) -> None:
    """Whole texts and their prefixes are judged right."""
    assert repeats(text.encode()) == expected


def test_complete_arrays_are_judged_as_json_values() -> None:
    """Python's own equality, with booleans handled separately, gives the same for all short arrays."""
    texts = ["1", "1.0", "0", "-0", "2", "true", '"a"', r'"\u0061"', "[1]", "[1.0]", "{}", '{"a":1}']
    for items in product(texts, repeat=2):
        one, other = map(json.loads, items)
        are_equal = one == other and isinstance(one, bool) == isinstance(other, bool)
        assert repeats(f"[{items[0]},{items[1]}]".encode()) == are_equal, items
