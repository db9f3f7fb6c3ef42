"""SGLang's own classes around a scheduler that is a script: what a server does for a request, without a model.

SGLang is installed without its dependencies for CUDA (``tests/engines/sglang.txt``); what it imports of torchvision
is never called.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import tokenizers
import torch
import transformers

WIDTH = 288
EOS, THINK, END_THINK, IM_END = 256, 257, 258, 259


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("sglang", reason="SGLang is not installed: make engines-sglang")
    if find_spec("torchvision") is None:
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional", "torchvision.io"):
            sys.modules[name] = _Module(name)
    from sglang.srt.constrained.grammar_manager import GrammarManager
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
    from sglang.srt.runtime_context import get_context, get_parallel
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.sampling.sampling_params import SamplingParams


def byte_tokenizer() -> Any:
    """A tokenizer of bytes and special tokens; the model's head is wider."""
    order = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {each: at for at, each in enumerate(order)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<eos>", "<think>", "</think>", "<|im_end|>"])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    made.additional_stop_token_ids = None  # SGLang sets it where it loads tokenizers
    return made


@contextmanager
def served(tokenizer: Any, **settings: Any) -> Iterator[Any]:
    """A real ``GrammarManager`` in a context with settings of a server."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = {"grammar_backend": "structgen", **settings}
        server_args = stack.enter_context(get_context().override_server_args(**chosen))
        stack.enter_context(get_parallel().override(pp_rank=0, pp_size=1, tp_rank=0))
        group = types.SimpleNamespace(world_size=1, first_rank=0, is_first_rank=True)
        ends = [END_THINK] if settings.get("reasoning_parser") else None
        model = types.SimpleNamespace(vocab_size=WIDTH, hf_eos_token_id={EOS}, think_end_ids=ends)
        scheduler = types.SimpleNamespace(
            server_args=server_args,
            tokenizer=tokenizer,
            model_config=model,
            dp_tp_cpu_group=None,
            dp_tp_group=group,
            pp_group=None,
        )
        yield GrammarManager(scheduler)


def request(manager: Any, name: str, *, reasoning: bool = False, ready: bool = True, **params: Any) -> Any:
    """A request after the queue for grammars; without a description it has none."""
    tokenizer = manager.scheduler.tokenizer
    settings = SamplingParams(**{"max_new_tokens": 64, **params})
    settings.normalize(tokenizer)
    req = Req(name, "", [1, 2], settings, vocab_size=WIDTH, eos_token_ids={EOS}, require_reasoning=reasoning)
    req.tokenizer = tokenizer
    is_queued = manager.process_req_with_grammar(req)
    while ready and is_queued and req in manager.grammar_queue:
        manager.get_ready_grammar_requests()
    return req


def mask_of(reqs: Sequence[Any]) -> SamplingBatchInfo:
    """The batch as SGLang sees it before it samples, with its mask."""
    grammars = [req.grammar for req in reqs]
    ones = torch.ones(len(reqs))
    info = SamplingBatchInfo(
        temperatures=ones[:, None],
        top_ps=ones,
        top_ks=ones.to(torch.int32),
        min_ps=ones,
        is_all_greedy=True,
        is_any_greedy=True,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=WIDTH,
        grammars=grammars if any(grammars) else None,
        device="cpu",
    )
    info.update_regex_vocab_mask()
    return info


def decode(reqs: Sequence[Any], seed: int, steps: int = 200, tilt: dict[int, float] | None = None) -> None:
    """Write all requests to their ends, from random logits; ``tilt`` is added to them."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        live = [req for req in reqs if not req.finished()]
        if not live:
            return
        logits = torch.from_numpy(random.normal(0.0, 3.0, (len(live), WIDTH)).astype(np.float32))
        for token, more in (tilt or {}).items():
            logits[:, token] += more
        info = mask_of(live)
        if info.grammar_mask is not None:
            info.grammar_mask.apply(logits)
        for req, token in zip(live, logits.argmax(1).tolist(), strict=True):
            take(req, token)
    raise AssertionError("some request did not end")


def take(req: Any, token: int) -> None:
    """What SGLang's scheduler does with a sampled token."""
    req.output_ids.append(token)
    req.update_finish_state()
    if req.grammar is not None:
        SchedulerBatchResultProcessor._accept_grammar_tokens(None, req, token)
        req.grammar.finished = req.finished()


def text_of(req: Any) -> str:
    """What a request has written, without special tokens."""
    return str(req.tokenizer.decode([token for token in req.output_ids if token < EOS]))
