"""Prompts of diffusion models as token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from structgen.errors import ModelError
from structgen.models.chat import messages_of_prompt

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Prompt

__all__ = ["chat_prompt", "plain_prompt"]


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
