"""Prompts as chat messages, and the Jinja templates that spell chats out.

A chat template is text from a model's files.  It is rendered in Jinja's sandbox, in the dialect that Hugging
Face defines: trimmed blocks, loop controls and ``raise_exception``.  ``strftime_now`` is left out, for it would
make prompts depend on the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Prompt

__all__ = ["chat_prompt", "messages_of_prompt", "plain_prompt", "render_chat"]


def messages_of_prompt(prompt: Prompt) -> list[dict[str, str]]:
    """Return the messages of a prompt; a text is one message of the user.

    Raises:
        ModelError: no messages, or one without a textual role and content.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages = list(prompt)
    if not messages:
        raise ModelError("prompt", "there are no messages", remedy="pass at least one message or a text")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ModelError(
                "prompt",
                f"message {index} is malformed",
                evidence=f"found {str(message)[:80]!r}",
                remedy="a message is a mapping with the texts 'role' and 'content'",
            )
    return [dict(message) for message in messages]


def render_chat(
    template: str, messages: list[dict[str, str]], *, name: str, special: Mapping[str, str] | None = None
) -> str:
    """Spell out ``messages`` by ``template``, ready for the assistant's answer.

    Args:
        template: Jinja source.
        messages: role and content of each.
        name: the model, for error messages.
        special: variables such as ``bos_token`` that templates refer to.

    Raises:
        ModelError: the template is malformed or refuses the messages.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, **(special or {})
        )
    except jinja2.TemplateError as error:
        raise ModelError(
            f"model {name!r}",
            "the chat template refuses the messages",
            evidence=str(error),
            remedy="change the messages, or pass a text with chat=False",
        ) from error


def plain_prompt(vocabulary: Vocabulary, prompt: Prompt) -> list[int]:
    """Return the tokens of a text, or of messages one to a line, for models without a chat template."""
    text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in messages_of_prompt(prompt))
    return vocabulary.tokenize(text)


def chat_prompt(tokenizer: Any, prompt: Prompt, *, chat: bool, name: str) -> list[int]:
    """Return the tokens of a prompt by a tokenizer of transformers and its chat template.

    Args:
        tokenizer: of transformers.
        prompt: a text is one message of the user, unless ``chat`` is false or there is no template.
        chat: whether a text is one.
        name: the model, for messages.

    Raises:
        ModelError: messages are malformed, the template refuses them, or there is none for them.
    """
    templated = getattr(tokenizer, "chat_template", None) is not None
    if isinstance(prompt, str) and not (chat and templated):
        return [int(token) for token in tokenizer.encode(prompt)]
    if not templated:
        raise ModelError(
            f"model {name!r}",
            "it has no chat template, so messages cannot be spelled out",
            remedy="pass the prompt as one text",
        )
    import jinja2

    try:
        text = tokenizer.apply_chat_template(messages_of_prompt(prompt), tokenize=False, add_generation_prompt=True)
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        raise ModelError(
            f"model {name!r}",
            "the chat template refuses the messages",
            evidence=str(error),
            remedy="change the messages, or pass a text with chat=False",
        ) from error
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]
