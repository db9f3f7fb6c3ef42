"""``structgen.program`` is a package and a decorator."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "first",
    [
        "import structgen",
        "import structgen.program",
        "import structgen.program.json_cursor",
        "import structgen; structgen.program.Run",
    ],
)
def test_the_name_is_the_decorator_in_every_order(first: str) -> None:
    code = f"""
{first}
import structgen as sg
@sg.program
def f(x: str) -> int:
    '''{{x}}'''
import structgen.program.stream.event
from structgen.program import Text
@sg.program(max_tokens=3)
def g(x: str) -> int:
    '''{{x}}'''
print(f.name, g.settings.max_tokens)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("f 3\n", "")
