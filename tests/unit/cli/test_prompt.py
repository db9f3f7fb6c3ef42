"""What the model is asked: ``--prompt``, ``--system`` and ``--chat-template``."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from structgen.cli import run as run_module
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.errors import ModelError
from structgen.models import HashModel
from structgen.models.model_input import messages_of_prompt, render_chat, use_chat_template

Outcome = tuple[int, str, str]


class _Chatty(HashModel):
    """Notes what it encodes, and renders messages by a template."""

    chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    texts: list[str]

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        is_text = isinstance(prompt, str) and not chat
        text = prompt if is_text else render_chat(self.chat_template, messages_of_prompt(prompt), name=self.name)
        self.texts.append(text)
        return super().encode_prompt(text)


@pytest.fixture
def model(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> _Chatty:
    model = _Chatty(json_vocabulary)
    model.texts = []
    monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: model)
    return model


@pytest.fixture
def run(
    model: _Chatty, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, Outcome]]:
    """Run the command: the text that the model reads, and (exit status, standard output, standard error)."""

    def call(*arguments: str, stdin: str = "") -> tuple[str, Outcome]:
        model.texts.clear()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = main(["run", *arguments])
        return "".join(model.texts), (status, *capsys.readouterr())

    return call


REGEX = ("--regex", "[a-z]{3}")


def test_a_message_of_the_system(run: Callable[..., tuple[str, Outcome]]) -> None:
    """``--system`` comes before the prompt, wherever the prompt comes from."""
    assert run(*REGEX, "--prompt", "Who?", "--system", "Be brief.")[0] == "<system>Be brief.<user>Who?"
    assert run(*REGEX, "--prompt", "-", "--system", "Be brief.", stdin="Who?\n")[0] == "<system>Be brief.<user>Who?\n"
    assert run(*REGEX, "--prompt", "Who?")[0] == "<user>Who?"


def test_the_prompt_from_standard_input(run: Callable[..., tuple[str, Outcome]], tmp_path: Path) -> None:
    """``--prompt -`` reads standard input, which the description cannot be as well."""
    assert run(*REGEX, "--prompt", "-", "--no-chat", stdin="Say ")[0] == "Say "
    text, (status, _, err) = run("-", "--prompt", "-", stdin="{}")
    assert (text, status) == ("", 2)
    assert "FILE and --prompt cannot both be standard input" in err


def test_a_chat_template(run: Callable[..., tuple[str, Outcome]], tmp_path: Path) -> None:
    """A template of a file takes the place of the model's own."""
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}!")
    assert run(*REGEX, "--prompt", "Who?", "--system", "S", "--chat-template", str(path))[0] == "[S][Who?]!"
    path.write_text("{% if %}")
    _, (status, _, err) = run(*REGEX, "--chat-template", str(path))
    assert status == 1
    assert "chat template" in err


def test_a_missing_template_is_found_before_the_model_is_loaded(
    run: Callable[..., tuple[str, Outcome]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is loaded for a file that is not there."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(run_module, "model_of", refuse)
    _, (status, _, err) = run(*REGEX, "--chat-template", "no such file")
    assert status == 2
    assert "no such file: cannot be read" in err


@pytest.mark.parametrize("option", [("--system", "S"), ("--chat-template", "F")])
def test_a_prompt_as_it_is_has_no_messages(run: Callable[..., tuple[str, Outcome]], option: tuple[str, str]) -> None:
    """``--no-chat`` excludes what belongs to messages."""
    text, (status, _, err) = run(*REGEX, "--no-chat", *option)
    assert (text, status) == ("", 2)
    assert f"{option[0]} is not for --no-chat" in err


def test_the_system_of_a_program(run: Callable[..., tuple[str, Outcome]], tmp_path: Path) -> None:
    """``--system`` takes the place of the program's own."""
    path = tmp_path / "programs.py"
    path.write_text(
        "import structgen as sg\nfrom typing import Literal\n\n"
        '@sg.program(system="mine", describe=False)\ndef sure(text: str) -> Literal["yes", "no"]:\n    """{text}"""\n'
    )
    assert run(f"{path}:sure", "--arg", "text=Well?")[0] == "<system>mine<user>Well?"
    assert run(f"{path}:sure", "--arg", "text=Well?", "--system", "yours")[0] == "<system>yours<user>Well?"


def test_templates_of_models(json_vocabulary: Vocabulary) -> None:
    """Models of transformers have theirs in the tokenizer; a model that renders nothing refuses one."""
    tokenizer = SimpleNamespace(chat_template="old", apply_chat_template=None)
    use_chat_template(SimpleNamespace(tokenizer=tokenizer), "new")
    assert tokenizer.chat_template == "new"
    with pytest.raises(ModelError, match="no chat template to replace"):
        use_chat_template(HashModel(json_vocabulary), "new")
