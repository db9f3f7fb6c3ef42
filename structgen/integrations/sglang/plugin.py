"""Registration with SGLang: the name ``structgen`` for ``--grammar-backend``."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["NAME", "make_backend", "register"]

NAME: Final = "structgen"


def register() -> None:
    """Add the name to the choices of ``--grammar-backend``; SGLang calls it before it reads its arguments."""
    from sglang.srt.arg_groups.choices import GRAMMAR_BACKEND_CHOICES, add_grammar_backend_choices
    from sglang.srt.constrained.base_grammar_backend import register_grammar_backend

    if NAME not in GRAMMAR_BACKEND_CHOICES:  # once a process; SGLang may call it more often
        add_grammar_backend_choices([NAME])
    register_grammar_backend(NAME, make_backend)


def make_backend(server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any) -> Any:
    """Make the backend of a scheduler; inside that of reasoning, if the server has a parser for it."""
    from structgen.integrations.sglang.backend import backend_for_server

    return backend_for_server(tokenizer, vocab_size, eos_token_ids)
