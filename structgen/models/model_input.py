"""The input of models: prompts as chat messages, and canvases, which are checked before a forward pass."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from structgen.errors import GenerationError, ModelError, found
from structgen.models.control_tokens import ControlTokens
from structgen.models.protocol.language import Chat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Prompt
    from structgen.models.protocol.diffusion import Canvases

__all__ = [
    "CANVAS_SHIFTS",
    "CanvasLimits",
    "chat_prompt",
    "fills_canvases",
    "find_mask",
    "free_variables",
    "head_width",
    "messages_of_prompt",
    "named_eos",
    "plain_prompt",
    "render_chat",
    "template_of",
    "use_chat_template",
]

CANVAS_SHIFTS: Final = {"llada": 0, "lladamoe": 0, "llada_moe": 0, "dream": 1}
"""The families of diffusion models, by ``model_type`` in lower case: row i of their logits is about position i + shift.

LLaDA 2 (``llada2_moe``) and other models trained with block attention masks are excluded: without the mask their input
differs from training.
"""
_MASK_NAMES: Final = ("<mask>", "[MASK]", "<|mask|>", "<|mdm_mask|>", "<MASK>", "[mask]")


def fills_canvases(configuration: Mapping[str, Any]) -> bool:
    """Whether a model is a diffusion model by its config.json: of one of the families, or a masked language model."""
    named = configuration.get("architectures")
    networks = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    is_masked = any(each.endswith("ForMaskedLM") for each in networks)
    return str(configuration.get("model_type")).lower() in CANVAS_SHIFTS or is_masked


def head_width(model: Any) -> int | None:
    """Return the width of the output head of a model of transformers; None if it has no weights."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])


def named_eos(model: Any, tokenizer: Any) -> list[int]:
    """Return the EOS ids that generation settings, configuration and tokenizer name, in order, each once."""
    ids: dict[int, None] = {}
    for source in (getattr(model, "generation_config", None), model.config, tokenizer):
        named = getattr(source, "eos_token_id", None)
        ids.update(dict.fromkeys(named if isinstance(named, list | tuple) else [] if named is None else [named]))
    return list(ids)


class CanvasLimits(NamedTuple):
    """The limits of a diffusion model's input, and checks against them.

    Attributes:
        name: the model's name in messages.
        id_limit: one more than the largest token id that the model embeds.
        max_context: the maximum length of prompt and canvas together; None: unbounded.
    """

    name: str
    id_limit: int
    max_context: int | None

    def check_prompt(self, prompt_ids: Sequence[int], /) -> list[int]:
        """Return the ids of a prompt as plain ints.

        Raises:
            GenerationError: an id that the model lacks, or more tokens than fit its context.
        """
        ids = []
        for token in prompt_ids:
            try:
                ids.append(operator.index(token))
            except TypeError as error:
                raise self._error("a token of the prompt is not an integer", f"found {token!r:.40}") from error
        for token in ids:
            self._check_range(token, token)
        if self.max_context is not None and len(ids) > self.max_context:
            raise self._error(
                "the prompt does not fit into its context",
                f"{len(ids)} tokens; the context holds {self.max_context}",
                "shorten the prompt",
            )
        return ids

    def check_canvases(self, canvases: Canvases, /, *, prompt_tokens: int) -> Canvases:
        """Return canvases as an int32 array ``[n, slots]``.

        Raises:
            GenerationError: no canvas or no slot, an id that the model lacks, or more slots than fit its context after
                a prompt of ``prompt_tokens``.
        """
        array = np.asarray(canvases)
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
            raise self._error(
                "canvases are int32 [canvases, slots]",
                f"found {array.dtype} {list(array.shape)}",
                "pass one canvas as canvas[None]",
            )
        if 0 in array.shape:
            raise self._error("there is no canvas", f"found the shape {list(array.shape)}", "pass at least one slot")
        self._check_range(int(array.min()), int(array.max()))
        if self.max_context is not None and prompt_tokens + array.shape[1] > self.max_context:
            raise self._error(
                "prompt and canvas do not fit into its context",
                f"{prompt_tokens} tokens and {array.shape[1]} slots; the context holds {self.max_context}",
                "shorten the prompt or the canvas",
            )
        return array.astype(np.int32, copy=False)

    def check_live(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /, *, prompt_tokens: int
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Check and return the arguments of ``CachingDenoiser.denoise_live``: one canvas and its live slots.

        Raises:
            GenerationError: as ``check_canvases``; or ``live`` is not bool ``[slots]``.
        """
        array = np.asarray(canvas)
        row: NDArray[np.int32] = self.check_canvases(array[None], prompt_tokens=prompt_tokens)[0]
        mask = np.asarray(live)
        if mask.dtype != np.bool_ or mask.shape != row.shape:
            raise self._error(
                "live slots are bool [slots]", f"found {mask.dtype} {list(mask.shape)} for {len(row)} slots"
            )
        return row, mask

    def check_queried(self, canvases: NDArray[np.int32], queried: NDArray[np.bool_], /) -> NDArray[np.bool_]:
        """Return which slots are queried.

        Raises:
            GenerationError: ``queried`` is not bool of the shape of ``canvases``.
        """
        mask = np.asarray(queried)
        if mask.dtype != np.bool_ or mask.shape != np.shape(canvases):
            raise self._error(
                "the queried slots must be bool, in the shape of the canvases",
                f"found {mask.dtype} {list(mask.shape)} for {list(np.shape(canvases))}",
            )
        return mask

    def check_bounds(self, slots: int, start: int, stop: int | None, /) -> tuple[int, int]:
        """Return the range of queried slots as ``(start, stop)``.

        Raises:
            GenerationError: the range is empty, or not on the canvas.
        """
        end = slots if stop is None else stop
        if not 0 <= start < end <= slots:
            raise self._error(
                "the queried slots are not on the canvas", f"found start={start}, stop={stop} of {slots} slots"
            )
        return operator.index(start), operator.index(end)

    def _check_range(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.id_limit:
            raise self._error(
                f"it has no token {lowest if lowest < 0 else highest}", f"its ids are 0 to {self.id_limit - 1}"
            )

    def _error(self, problem: str, evidence: str, remedy: str = "") -> GenerationError:
        return GenerationError(f"model {self.name!r}", problem, evidence=evidence, remedy=remedy)


def find_mask(vocabulary: Vocabulary, mask_token: int | None) -> int:
    """Return the id of MASK: ``mask_token``, or the special token with the spelling of MASK.

    Raises:
        ModelError: ``mask_token`` is no special token or is an EOS, or no special token has the spelling of MASK.
    """
    special = vocabulary.special
    if mask_token is None:
        mask_token = next((token for name in _MASK_NAMES for token, text in special.items() if text == name), None)
    if mask_token is None:
        raise ModelError(
            "vocabulary",
            "none of its special tokens is MASK",
            evidence=f"looked for {', '.join(_MASK_NAMES)}",
            remedy="pass mask_token=, or name one: Vocabulary(..., special={id: '<mask>'})",
        )
    token = operator.index(mask_token)
    if token not in special or token in vocabulary.eos:
        raise ModelError(
            f"mask_token={token}",
            "it is an EOS" if token in vocabulary.eos else "it is no special token of the vocabulary",
            evidence=f"its special tokens are {', '.join(map(str, special)) or 'none'}"[:200],
            remedy="make the token special: Vocabulary(..., special={id: '<mask>'})",
        )
    return token


def messages_of_prompt(prompt: Prompt) -> list[dict[str, str]]:
    """Return the messages of a prompt; a text becomes one user message.

    Raises:
        ModelError: no messages, or one without a textual role and content.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
        remedy = "decode it" if isinstance(prompt, bytes) else "pass a text, or a list of messages"
        raise ModelError("prompt", "it is neither a text nor messages", evidence=found(prompt), remedy=remedy)
    messages = list(prompt)
    if not messages:
        raise ModelError("prompt", "there are no messages", remedy="pass at least one message or a text")
    for index, message in enumerate(messages):
        _refuse_parts(message, index)
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ModelError(
                "prompt",
                f"message {index} is malformed",
                evidence=f"found {str(message)[:80]!r}",
                remedy="a message is a mapping with the texts 'role' and 'content'",
            )
    return (
        Chat(messages, prompt.tools, prompt.variables)
        if isinstance(prompt, Chat)
        else [dict(message) for message in messages]
    )


_MEDIA: Final = ("image", "image_url", "images", "input_image", "audio", "input_audio", "video", "file")
"""Keys of messages, and types of their parts, that are no text."""


def _refuse_parts(message: object, index: int) -> None:
    """Refuse a message with images or other parts by name.

    Raises:
        ModelError: it has parts.
    """
    if not isinstance(message, Mapping):
        return
    parts, remedy = message.get("content"), "leave it out, or describe it in the text"
    kinds = [name for name in _MEDIA if name in message]
    if not kinds and isinstance(parts, (list, tuple)):
        named = [part.get("type", "part") if isinstance(part, Mapping) else type(part).__name__ for part in parts]
        kinds = [str(name) for name in named if name not in ("text", "str")]
        if not kinds:
            raise ModelError(
                "prompt",
                f"the content of message {index} is a list",
                evidence=f"it has {len(parts)} parts of text",
                remedy="join them: 'content' is one text",
            )
    if kinds:
        raise ModelError(
            "prompt",
            f"message {index} has a part that is no text, and models read text only",
            evidence=f"found {kinds[0]!r:.40}",
            remedy=remedy,
        )


def render_chat(
    template: str, messages: list[dict[str, str]], *, name: str, special: Mapping[str, str] | None = None
) -> str:
    """Render ``messages`` by ``template``, ready for the assistant's answer.

    Args:
        template: Jinja source.
        messages: mappings with role and content; a ``Chat`` has tools and variables too.
        name: the model's name in error messages.
        special: variables such as ``bos_token`` that templates use.

    Raises:
        ModelError: the template is malformed or refuses the messages.
    """
    from structgen.models.chat_template import render_template

    tools, more = (messages.tools, messages.variables) if isinstance(messages, Chat) else (None, {})
    own = {"messages": list(messages), "tools": tools or None, "add_generation_prompt": True, **(special or {})}
    try:
        return render_template(template, {"documents": None, **more, **own})
    except Exception as error:  # a template may raise anything
        raise ModelError(
            f"model {name!r}",
            "the chat template refuses the messages",
            evidence=str(error) or type(error).__name__,
            remedy="change the messages, or pass a text with chat=False",
        ) from error


def free_variables(template: str) -> frozenset[str]:
    """Return the variables of a template that a caller may set: those that it names, and ``render_chat`` does not set.

    Variables that hold special tokens (``bos_token``) are set by the model.
    """
    from structgen.models.chat_template import variables_of

    named = (name for name in variables_of(template) if not name.endswith(("_token", "_tokens")))
    return frozenset(named) - {"messages", "tools", "add_generation_prompt", "strftime_now"}


def use_chat_template(model: Any, template: str) -> None:
    """Let a model render messages by ``template``, Jinja source, in place of its own.

    Raises:
        ModelError: the model renders no messages.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if hasattr(model, "chat_template"):
        model.chat_template = template
    elif tokenizer is not None and hasattr(tokenizer, "apply_chat_template"):
        tokenizer.chat_template = template
    else:
        raise ModelError(
            f"model {model.name!r}",
            "it takes its prompt as it is, so there is no chat template to replace",
            remedy="leave the template out",
        )


def template_of(model: Any) -> str | None:
    """Return the chat template of a model, Jinja source; None if it has none."""
    held = getattr(model, "chat_template", None)
    return held if isinstance(held, str) else _template_of(getattr(model, "tokenizer", None))


def plain_prompt(vocabulary: Vocabulary, prompt: Prompt) -> list[int]:
    """Return the tokens of a text, or of messages, one per line, for models without a chat template."""
    text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in messages_of_prompt(prompt))
    return vocabulary.tokenize(text)


def chat_prompt(tokenizer: Any, prompt: Prompt, *, chat: bool, name: str) -> list[int]:
    """Return the tokens of a prompt by a tokenizer of transformers and its chat template.

    Args:
        tokenizer: a tokenizer of transformers.
        prompt: a text becomes one user message, unless ``chat`` is false or there is no template.
        chat: whether a text becomes a user message.
        name: the model's name in messages.

    Raises:
        ModelError: messages are malformed, the template refuses them, or messages are given without a template.
    """
    template = _template_of(tokenizer)

    def encode(text: str, **options: bool) -> list[int]:
        return [int(token) for token in tokenizer.encode(text, **options)]

    def encode_text(text: str) -> list[int]:
        return encode(text, add_special_tokens=False, split_special_tokens=True)

    control = _control_tokens(tokenizer, template)
    if isinstance(prompt, str) and not (chat and template is not None):
        return control.text_ids(prompt, encode, encode_text)
    if template is None:
        raise ModelError(
            f"model {name!r}",
            "it has no chat template, so messages cannot be rendered",
            remedy="pass the prompt as one text",
        )
    special = {**tokenizer.special_tokens_map, "strftime_now": lambda form: datetime.now().strftime(form)}
    return control.chat_ids(
        messages_of_prompt(prompt),
        lambda messages: render_chat(template, messages, name=name, special=special),
        lambda text: encode(text, add_special_tokens=False),
        encode_text,
    )


def _template_of(tokenizer: Any) -> str | None:
    """Return the chat template of a tokenizer of transformers, its default if it has several."""
    held = getattr(tokenizer, "chat_template", None)
    return held if held is None or isinstance(held, str) else str(tokenizer.get_chat_template())


def _control_tokens(tokenizer: Any, template: str | None) -> ControlTokens:
    named = list(map(str, getattr(tokenizer, "all_special_tokens", ())))
    key = (len(tokenizer), template, named)
    known = _KNOWN.get(tokenizer)
    if known is None or known[0] != key:  # to list the added tokens takes longer than to tokenize a prompt
        special: dict[str, int] = {}
        others: dict[str, int] = {}
        for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
            (special if added.special else others)[added.content] = token
        special |= dict(zip(named, tokenizer.convert_tokens_to_ids(named), strict=True)) if named else {}
        known = _KNOWN[tokenizer] = (key, ControlTokens(special, others, template))
    return known[1]


_KNOWN: Final[WeakKeyDictionary[Any, tuple[object, ControlTokens]]] = WeakKeyDictionary()
