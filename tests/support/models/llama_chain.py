"""A program around llama.cpp as others write it in C: a model, a context, and a chain that picks each token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from structgen.models.llama_cpp.library import Library, RowBatch, library

_P, _I, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float


class Candidate(ctypes.Structure):
    """``llama_token_data``."""

    _fields_ = (("id", _I), ("logit", _F), ("p", _F))


class Candidates(ctypes.Structure):
    """``llama_token_data_array``."""

    _fields_ = (("data", _P), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool))


class _ChainSettings(ctypes.Structure):
    _fields_ = (("no_perf", ctypes.c_bool),)


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_batch_get_one": (RowBatch, (_P, _I)),
    "llama_sampler_chain_default_params": (_ChainSettings, ()),
    "llama_sampler_chain_init": (_P, (_ChainSettings,)),
    "llama_sampler_chain_add": (None, (_P, _P)),
    "llama_sampler_chain_get": (_P, (_P, _I)),
    "llama_sampler_init_greedy": (_P, ()),
    "llama_sampler_init_dist": (_P, (ctypes.c_uint32,)),
    "llama_sampler_init_temp": (_P, (_F,)),
    "llama_sampler_init_top_k": (_P, (_I,)),
    "llama_sampler_init_grammar": (_P, (_P, ctypes.c_char_p, ctypes.c_char_p)),
    "llama_sampler_sample": (_I, (_P, _P, _I)),
    "llama_sampler_apply": (None, (_P, _P)),
    "llama_sampler_accept": (None, (_P, _I)),
    "llama_sampler_clone": (_P, (_P,)),
    "llama_sampler_copy": (None, (_P, _P)),
    "llama_sampler_reset": (None, (_P,)),
    "llama_sampler_free": (None, (_P,)),
    "llama_sampler_name": (ctypes.c_char_p, (_P,)),
}


def samplers() -> Library:
    """llama.cpp, with the functions that concern samplers."""
    found = library()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def apply(sampler: int, candidates: Sequence[tuple[int, float]], *, is_sorted: bool = False) -> list[tuple[int, float]]:
    """What a sampler leaves of candidates, as (id, logit)."""
    data = (Candidate * len(candidates))(*((token, logit, 0.0) for token, logit in candidates))
    array = Candidates(ctypes.addressof(data), len(candidates), -1, is_sorted)
    samplers().llama_sampler_apply(sampler, ctypes.byref(array))
    return [(each.id, each.logit) for each in data[: array.size]]


class ChainHost:
    """A model and a context, for one sequence."""

    def __init__(self, path: Path, *, cells: int = 512) -> None:
        self.library = samplers()
        self.model = self.library.load_model(path, gpu_layers=0)
        assert self.model
        self.context = self.library.start_context(self.model, cells=cells, rows=cells, sequences=1)
        self.library.llama_set_n_threads(self.context, 1, 1)
        self.vocabulary = self.library.llama_model_get_vocab(self.model)

    def chain(self, *parts: Any) -> int:
        """A chain that owns the samplers, addresses or what has ``add_to``."""
        made: int = self.library.llama_sampler_chain_init(self.library.llama_sampler_chain_default_params())
        for part in parts:
            if hasattr(part, "add_to"):
                part.add_to(made)
            else:
                self.library.llama_sampler_chain_add(made, part)
        return made

    def read(self, tokens: Sequence[int], *, anew: bool = False) -> None:
        """Run tokens through the model, after those before or as the first ones."""
        if anew:
            self.library.llama_memory_seq_rm(self.library.llama_get_memory(self.context), -1, -1, -1)
        held = (_I * len(tokens))(*tokens)
        assert self.library.llama_decode(self.context, self.library.llama_batch_get_one(held, len(tokens))) == 0

    def write(self, chain: int, prompt: Sequence[int], most: int) -> list[int]:
        """Sample up to ``most`` tokens after a prompt; ends before a token that ends an output."""
        self.read(prompt, anew=True)
        return self.go_on(chain, most)

    def go_on(self, chain: int, most: int) -> list[int]:
        """Sample up to ``most`` tokens after what was read."""
        output: list[int] = []
        while len(output) < most:
            token = self.library.llama_sampler_sample(chain, self.context, -1)
            if self.library.llama_vocab_is_eog(self.vocabulary, token):
                break
            output.append(token)
            self.read([token])
        return output

    def close(self) -> None:
        """Free the context and the model."""
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)
