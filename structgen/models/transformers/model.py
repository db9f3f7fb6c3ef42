"""A ``LanguageModel`` over any causal model of transformers that keeps a key-value cache.

Token trees run in one pass if a trial shows that the model computes them correctly.
"""

from __future__ import annotations

import copy
import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.model_input import chat_prompt, head_width, named_eos
from structgen.models.pass_times import pass_times
from structgen.models.protocol.tree import TokenTree
from structgen.models.session import SequenceLimits, check_kept, check_truncation, treeless
from structgen.models.torch_logits import Residence, TorchLogits, is_resident_on
from structgen.models.torch_passes import TorchPasses
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import Logits, Prompt, ResidentLogits

__all__ = [
    "TransformersModel",
    "TransformersSession",
    "keep_entries",
    "own_entries",
    "takes_trees",
    "tree_inputs",
    "written",
]

_TRUNK: Final = (0, 1, 2)
_TRIAL: Final = TokenTree((3, 4, 5, 6, 7), (-1, -1, 1, 0, 2))
_CACHE_NAMES: Final = ("cache", "past_key_values")
"""The names of a forward pass's cache in transformers: from 5.24 on, and before; the newer one is preferred."""
_ROUNDING: Final = 1e-3
"""A row of a trial may differ from that of the sequence by this share of the spread of its logits, or by a few units in
the last place of the model's numbers; one whose mask or position is wrong differs by about the spread."""


def tree_inputs(model: Any, count: int, tree: TokenTree, *, past: int) -> dict[str, torch.Tensor]:
    """Return the additional arguments of a forward pass with a tree.

    Args:
        model: a model of transformers.
        count: number of tokens before the tree in the pass.
        tree: the tree after the tokens.
        past: number of tokens in the cache.

    Returns:
        ``position_ids`` ``[1, rows]`` and ``attention_mask`` ``[1, 1, rows, past + rows]`` in the form of the model's
        attention: booleans for the fused attention, numbers added to the scores for the eager attention.
    """
    device = model.get_input_embeddings().weight.device
    size = len(tree.token_ids)
    visible = torch.ones((count + size, past + count + size), dtype=torch.bool, device=device).tril(past)
    visible[-size:, -size:] = torch.from_numpy(tree.ancestors()).to(device)
    end = past + count
    positions = [*range(past, end), *(end + depth for depth in tree.depths())]
    mask = visible
    if _attention(model) == "eager":
        mask = torch.zeros(visible.shape, dtype=model.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(model.dtype).min)
    return {"position_ids": torch.tensor([positions], device=device), "attention_mask": mask[None, None]}


def keep_entries(cache: DynamicCache, length: int, entries: Sequence[int]) -> None:
    """Keep the first ``length`` tokens of a plain cache, and the given entries, counted from ``length``.

    O(1) if the entries are the first ones, else O(tokens).
    """
    end = length + len(entries)
    in_place = all(at == entry for at, entry in enumerate(entries))
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            continue
        keys, values = layer.keys[..., :end, :], layer.values[..., :end, :]
        if not in_place:  # new tensors: forks may share those of the cache
            rows = torch.tensor([*range(length), *(length + entry for entry in entries)], device=keys.device)
            keys, values = layer.keys.index_select(-2, rows), layer.values.index_select(-2, rows)
        layer.keys, layer.values = keys, values


def own_entries(cache: DynamicCache) -> None:
    """Copy the keys and values of a cache, because the next pass of a compiled model may overwrite them; O(tokens).

    CUDA graphs do so (``mode="reduce-overhead"``).
    """
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def takes_trees(model: TransformersModel) -> bool:
    """Return whether a model's logits for a tree equal those for its paths; takes up to three short passes.

    This needs attention with arbitrary masks and a cache that can keep any entries: no kernels for causal attention
    only, no recurrent states, no windows shorter than the context, no biases from the order of the tokens.  Models do
    not declare how they use masks and positions, so a trial decides.
    """
    network = model.model
    if not (
        "position_ids" in inspect.signature(written(network).forward).parameters
        and getattr(network, "_supports_attention_backend", False)  # its attention uses the mask unchanged
        and _attention(network) in ("eager", "sdpa")
        and _sees_all(network.config, model.max_context)
    ):
        return False
    try:
        return _passes_trial(model)
    except Exception:  # an unknown architecture may raise anything; then trees are not run
        return False


def written(model: Any) -> Any:
    """Return the original model if ``torch.compile`` has wrapped it: it has the name and the signature."""
    return getattr(model, "_orig_mod", model)


def _attention(model: Any) -> str | None:
    name: str | None = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)
    return name


def _sees_all(config: Any, max_context: int | None) -> bool:
    """Return whether each token attends to all earlier tokens, in all layers, for every length up to the context."""
    longest = float("inf") if max_context is None else max_context
    return all(
        type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window >= longest)
        for layer in DynamicCache(config=config).layers
    )


def _passes_trial(model: TransformersModel) -> bool:
    """Return whether the logits after two leaves of a tree, of different depths, equal those of the sequences."""
    trunk, tree = list(_TRUNK), _TRIAL
    size = len(tree.token_ids)
    rows = model.run(trunk, model.empty_cache(), positions=size, tree=tree).float()
    precision = torch.finfo(model.model.dtype).eps
    for path in ((0, 3), (1, 2, 4)):
        chain = [tree.token_ids[node] for node in path]
        expected = model.run(trunk + chain, model.empty_cache(), positions=1)[0].float()
        error = (rows[path[-1]] - expected).square().mean().sqrt()
        if not error <= max(_ROUNDING, 4 * precision) * expected.std():
            return False
    return True


class TransformersModel(Live):
    """A loaded model and its tokenizer.

    Args:
        model: a causal language model of transformers, or the result of ``torch.compile``; set to evaluation mode.
        tokenizer: the tokenizer of the model.
        name: the model's name in messages; by default the name that it was loaded by.
        resident: whether logits stay on the model's device and tokens are sampled there; None: only on a GPU.

    Raises:
        ModelError: the model keeps no key-value cache, or neither it nor its tokenizer names an EOS.
        VocabularyError: the bytes of the tokenizer's tokens are not well defined.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str | None = None, resident: bool | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        kind = type(written(model)).__name__
        self.name: str = name or getattr(model.config, "name_or_path", "") or kind
        parameters = inspect.signature(written(model).forward).parameters
        cache_name = next((each for each in _CACHE_NAMES if each in parameters), None)
        if cache_name is None:
            raise ModelError(
                f"model {self.name!r}",
                f"a {kind} keeps no key-value cache",
                remedy="use a causal language model (AutoModelForCausalLM)",
            )
        self._cache_name = cache_name
        self._is_compiled = written(model) is not model
        self._can_skip_logits = "logits_to_keep" in parameters
        self._keeps_all = _can_keep_all(model.config)
        bound = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        self.max_context: int | None = bound if isinstance(bound, int) and bound > 0 else None
        self.id_limit: int = model.get_input_embeddings().weight.shape[0]
        self.vocabulary = Vocabulary.load(tokenizer, size=self._head_width(), eos=self._end_ids())
        self.is_resident = is_resident_on(model.device, requested=resident)
        self.residence = Residence()
        # MKL's sums depend on the number of threads.
        self._passes = TorchPasses(model.device, learns=False, is_checked=False)

    def _head_width(self) -> int:
        return head_width(self.model) or int(self.model.config.get_text_config(decoder=True).vocab_size)

    def _end_ids(self) -> list[int]:
        """Return the EOS ids within the logits."""
        eos = [token for token in named_eos(self.model, self.tokenizer) if 0 <= token < self._head_width()]
        if not eos:
            raise ModelError(
                f"model {self.name!r}",
                "neither the model nor its tokenizer names an EOS",
                remedy="set tokenizer.eos_token or model.generation_config.eos_token_id and pass both",
            )
        return eos

    @property
    def limits(self) -> SequenceLimits:
        """The limits of the model's input."""
        return SequenceLimits(self.name, self.id_limit, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        return chat_prompt(self.tokenizer, prompt, chat=chat, name=self.name) or [self._first_id()]

    def _first_id(self) -> int:
        """Return the token that replaces an empty prompt: BOS, else EOS."""
        bos = getattr(self.tokenizer, "bos_token_id", None)
        return self.vocabulary.eos[0] if bos is None else int(bos)

    def start(self) -> TransformersSession:
        """Return an empty session."""
        return TransformersSession(self)

    def empty_cache(self) -> DynamicCache:
        """Return a cache that can be truncated, if the model allows one.

        Sliding-window attention also works on a cache that keeps all tokens (the mask hides the others).  This costs
        memory and makes ``truncate`` free.
        """
        return DynamicCache() if self._keeps_all else DynamicCache(config=self.model.config)

    @cached_property
    def takes_trees(self) -> bool:
        """See ``structgen.models.transformers.model.takes_trees``; the first access runs the trial."""
        return takes_trees(self)

    @property
    def pass_times(self) -> PassTimes | None:
        """See ``structgen.models.pass_times``; None on a GPU, and if the model is compiled for each number of rows."""
        if self.model.device.type != "cpu" or self._is_compiled:
            return None
        versions = (torch.__version__, transformers.__version__, torch.get_num_threads())
        return pass_times(self, ("transformers", *versions, self.model.config.to_json_string(), self.model.dtype))

    def run(
        self, token_ids: list[int], cache: DynamicCache, *, positions: int, tree: TokenTree | None = None
    ) -> torch.Tensor:
        """Run one forward pass that extends ``cache``.

        Args:
            token_ids: the tokens to run, before those of the tree.
            cache: the keys and values of the earlier tokens.
            positions: number of last positions to return logits for, those of the tree included.
            tree: the tree after the tokens, or None.

        Returns:
            Logits ``[positions, size]`` in the model's dtype; no later pass writes to them.
        """
        kept = {"logits_to_keep": positions} if self._can_skip_logits else {}
        extra: dict[str, Any] = {self._cache_name: cache, **kept}
        if tree is not None:
            extra |= tree_inputs(self.model, len(token_ids), tree, past=cache.get_seq_length())
            token_ids = [*token_ids, *tree.token_ids]
        if self._is_compiled:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

        def forward() -> torch.Tensor:
            with torch.inference_mode():
                output = self.model(
                    input_ids=torch.tensor([token_ids], device=self.model.get_input_embeddings().weight.device),
                    use_cache=True,
                    return_dict=True,
                    **extra,
                )
                # A copy: a view would keep all logits in memory, and a compiled model may reuse that memory.
                logits: torch.Tensor = output.logits[0, -positions:].clone()
                if self._is_compiled:
                    own_entries(cache)
                return logits

        return forward() if self._is_compiled else self._passes.run(forward, rows=len(token_ids))

    def __repr__(self) -> str:
        return f"<TransformersModel {self.name}, {self.model.dtype} on {self.model.device}>"


class TransformersSession(Live):
    """One sequence of a ``TransformersModel``.

    The session keeps the token ids as well as the cache.  If a cache cannot be truncated (recurrent states),
    ``truncate`` drops it, and the next forward pass runs over the whole sequence.

    Invariant: the cache holds the first ``_cached`` of ``_tokens``, then the tokens of the tree, if there is one.
    """

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self._tokens: list[int] = []
        self._cached = 0
        self._cache = model.empty_cache()
        self._tree: TokenTree | None = None
        self.forwards = 0

    @property
    def cuts_freely(self) -> bool:
        """Whether ``truncate`` costs nothing; else the next pass runs the whole sequence again."""
        return _is_plain(self._cache)

    @property
    def can_branch(self) -> bool:
        """Whether the model's architecture supports trees; the first access of a model runs a trial."""
        return self._model.takes_trees

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend``."""
        row: Logits = self._on_host(token_ids, all_positions=False)[0]
        return row

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend_all``."""
        return self._on_host(token_ids, all_positions=True)

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """See ``TreeSession.extend_tree``."""
        return self._on_host(token_ids, all_positions=all_positions, tree=tree)

    @property
    def is_resident(self) -> bool:
        """See ``ResidentSession.is_resident``."""
        return self._model.is_resident

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """See ``ResidentSession.extend_resident``."""
        return TorchLogits(self._model.residence, self._run(token_ids, all_positions=all_positions, tree=tree))

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``; O(1) if the nodes are the first of the tree, else O(length)."""
        check_kept(nodes, tree=self._tree, name=self._model.name)
        self._end_tree(nodes)

    def _end_tree(self, nodes: Sequence[int] = ()) -> None:
        """Append these nodes of the tree to the sequence and drop the others from the cache."""
        if self._tree is not None:
            try:
                keep_entries(self._cache, self._cached, nodes)
                self._tokens += [int(self._tree.token_ids[node]) for node in nodes]
                self._cached = len(self._tokens)
                self._tree = None
            except BaseException:  # Ctrl-C between two layers of the cache
                self._drop_cache()
                raise

    def _on_host(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        logits: Logits = self._run(token_ids, all_positions=all_positions, tree=tree).float().cpu().numpy()
        return logits

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> torch.Tensor:
        model = self._model
        if tree is not None and not self.can_branch:
            raise treeless(name=model.name)
        ids = model.limits.check_extension(token_ids, length=self.length, tree=tree)
        self._end_tree()
        fresh = self._tokens[self._cached :] + ids
        ahead = 0 if tree is None else len(tree.token_ids)
        positions = ahead + (len(ids) if all_positions else 1)
        try:
            logits = model.run(fresh, self._cache, positions=positions, tree=tree)
        except BaseException as error:
            # Some layers of the cache may have grown and others not, also after Ctrl-C.
            self._drop_cache()
            if isinstance(error, RuntimeError | MemoryError):  # torch reports exhausted memory as RuntimeError
                raise GenerationError(
                    f"model {model.name!r}",
                    "the forward pass failed",
                    evidence=f"{error} at {self.length} + {len(ids) + ahead} tokens",
                    remedy="shorten the prompt, choose another device, or a smaller dtype",
                ) from error
            raise
        self._tokens += ids
        self._cached = len(self._tokens)
        self._tree = tree
        self.forwards += 1
        return logits

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``; O(1) if the cache can be truncated, else the next pass runs all tokens."""
        check_truncation(length, held=self.length, name=self._model.name)
        self._end_tree()
        del self._tokens[length:]
        if length >= self._cached:
            return
        if length > 0 and _is_plain(self._cache):
            self._cache.crop(length - self._cached)  # negative: how many to remove
            self._cached = length
        else:
            self._drop_cache()

    def fork(self) -> TransformersSession:
        """See ``Session.fork``; a plain cache shares its tensors, which are replaced and never written to."""
        self._end_tree()
        fork = TransformersSession(self._model)
        fork._tokens = list(self._tokens)
        fork._cached = self._cached
        if _is_plain(self._cache):
            fork._cache = copy.copy(self._cache)
            fork._cache.layers = [copy.copy(layer) for layer in self._cache.layers]
        else:
            fork._cache = copy.deepcopy(self._cache)
        return fork

    def close(self) -> None:
        """See ``Session.close``."""
        self._tokens = []
        self._drop_cache()

    def _drop_cache(self) -> None:
        self._cache = self._model.empty_cache()
        self._cached = 0
        self._tree = None


def _can_keep_all(config: Any) -> bool:
    """Return whether all layers use full or sliding-window attention."""
    text_config = config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(text_config, "layer_types", None) or ()):
        return False
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    return kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


def _is_plain(cache: DynamicCache) -> bool:
    """Return whether every layer keeps all keys and values, so that the cache can be truncated."""
    return all(type(layer) is DynamicLayer for layer in cache.layers)
