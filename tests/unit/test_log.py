"""The logger ``structgen``, and the version."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

import structgen as sg
from structgen.engine import Vocabulary
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


class Odd(BaseModel):
    number: Annotated[int, AfterValidator(odd)]


@sg.program
def which() -> Odd:
    """Which?"""


def _messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level and record.name == "structgen"]


def test_compiling_is_logged_with_its_costs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="structgen"):
        constraint = sg.compile(sg.regex("[a-c]{3,5}x"), VOCABULARY)
        assert sg.compile(constraint.grammar, VOCABULARY) is constraint  # kept: nothing was compiled
    (message,) = _messages(caplog, logging.DEBUG)
    assert message.startswith("compiled <Grammar ")
    assert " ms: " in message


def test_loading_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgen import models

    monkeypatch.setattr(models, "load_embedded", lambda **_: HashModel(VOCABULARY, name="tiny"))
    with caplog.at_level(logging.DEBUG, logger="structgen"):
        models.load_model(runtime="torch")
    assert _messages(caplog, logging.DEBUG)[0].startswith("loaded model 'tiny' in 0.")


def test_a_budget_that_decides_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    lm = HashModel(VOCABULARY, writes="a" * 90)
    sg.generate(lm, "x", sg.regex("a+b"), max_tokens=20)
    (message,) = _messages(caplog, logging.WARNING)
    assert message == "budget of 20 tokens: it decided the output from token 19 of 20 on"
    caplog.clear()
    sg.generate(lm, "x", sg.regex("a{4}b"), max_tokens=20)
    assert _messages(caplog, logging.WARNING) == []


def test_refused_values_are_told_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="structgen"):
        which(model=HashModel(VOCABULARY, writes='{"number": 8}'), tries=50)
    messages = _messages(caplog, logging.INFO)
    assert messages[0] == "field 'number' is written again, refusal 1: Value error, even"


def test_parts_that_fail_and_are_replaced_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(HashModel):
        def extend_many(self, extensions: Any, /) -> Any:
            raise RuntimeError("no memory")

    @sg.program
    def number(text: str) -> int:
        """A number. {text}"""

    number.map(["a", "b"], model=Failing(VOCABULARY), batch_size=2, drafter=None)
    assert any("each is run alone: RuntimeError" in message for message in _messages(caplog, logging.WARNING))


def test_nothing_is_printed_unless_it_is_set_up() -> None:
    """A library's warnings go nowhere by themselves, and messages are not made where nobody reads them."""
    program = (
        "import structgen as sg\n"
        "from structgen.models import HashModel\n"
        "v = sg.Vocabulary([b'', *(bytes([b]) for b in range(256))], eos=[0])\n"
        "sg.generate(HashModel(v, writes='a' * 90), 'x', sg.regex('a+b'), max_tokens=20)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ran.stderr == ""


def test_the_version_is_that_of_the_package() -> None:
    """It is read from the installed package when it is asked for; importing reads nothing, and loads no logging."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert sg.__version__ == project["version"]
    program = (
        "import json, sys\nbefore = set(sys.modules)\nimport structgen\n"
        "print(json.dumps(sorted({*sys.modules} - before)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"importlib.metadata", "logging"}.isdisjoint(json.loads(ran.stdout))
