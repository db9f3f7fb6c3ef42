"""The blocks of docs/guides/server.md that need a client run as they are, but for the address."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from asked import CHECKOUT
from test_javascript import CITY, run_node

SECTION = (CHECKOUT / "docs/guides/server.md").read_text().split("\n## Clients\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
(SCRIPT,) = re.findall(r"^```js\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)


def at(address: str, block: str) -> str:
    """A block with the address of the server of the tests."""
    assert "http://127.0.0.1:8000/v1" in block
    return block.replace("http://127.0.0.1:8000", address)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split()[1])
def test_a_block_ends_with_its_model(address: str, block: str) -> None:
    """The client has validated ``city``."""
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(at(address, block), "docs/guides/server.md", "exec", dont_inherit=True), names)
    assert isinstance(names["city"], names["City"])  # type: ignore[arg-type]


def test_the_block_of_javascript_prints_its_model(address: str) -> None:
    """As the zod schema has it."""
    jsonschema.validate(json.loads(run_node(at(address, SCRIPT))), CITY)
