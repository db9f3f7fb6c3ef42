"""The C functions of llama.cpp, in whichever installed package has them.

``xllamacpp`` and ``llama-cpp-python`` both contain a compiled llama.cpp.  ctypes calls its functions (``llama.h``); the
Python code of the package is not imported.

The functions are stable; the two structs of parameters are not, since fields come and go between releases.  A struct is
therefore an opaque block that llama.cpp fills with its defaults.  The few fields that are set here are found by these
defaults, and their effect is checked afterwards.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections import deque
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from structgen.errors import ModelError, install
from structgen.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PASS_ROWS", "Library", "Part", "RowBatch", "Rows", "library"]


_PACKAGES: Final = (
    ("xllamacpp", ("xllamacpp*.so", "xllamacpp*.pyd")),
    ("llama_cpp", ("lib/libllama.so", "lib/libllama.dylib", "lib/llama.dll", "lib/libllama.dll")),
)
_BLOCK_BYTES: Final = 1024
"""More than any version's struct of parameters: what is beyond the struct is never read."""


class RowBatch(ctypes.Structure):
    """``llama_batch``: the rows of a pass, with the sequences that each row belongs to."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("embeddings", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("sequence_counts", ctypes.c_void_p),
        ("sequences", ctypes.c_void_p),
        ("requested", ctypes.c_void_p),
    )


class _Block(ctypes.Structure):
    """A struct of parameters, which llama.cpp fills with its defaults."""

    _fields_ = (("data", ctypes.c_uint8 * _BLOCK_BYTES),)

    def number(self, offset: int) -> int:
        return ctypes.c_int32.from_buffer(self, offset).value

    def set_number(self, offset: int, value: int) -> None:
        ctypes.c_int32.from_buffer(self, offset).value = value

    def set_flag(self, offset: int, *, value: bool) -> None:
        ctypes.c_uint8.from_buffer(self, offset).value = int(value)


_POINTER, _INT, _BOOL, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_size_t
_TEXT: Final = ctypes.c_char_p

_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_backend_init": (None, ()),
    "llama_supports_gpu_offload": (_BOOL, ()),
    "llama_model_default_params": (_Block, ()),
    "llama_context_default_params": (_Block, ()),
    "llama_model_load_from_file": (_POINTER, (_TEXT, _Block)),
    "llama_model_free": (None, (_POINTER,)),
    "llama_model_get_vocab": (_POINTER, (_POINTER,)),
    "llama_model_n_ctx_train": (_INT, (_POINTER,)),
    "llama_model_has_encoder": (_BOOL, (_POINTER,)),
    "llama_model_is_recurrent": (_BOOL, (_POINTER,)),
    "llama_vocab_n_tokens": (_INT, (_POINTER,)),
    "llama_vocab_is_eog": (_BOOL, (_POINTER, _INT)),
    "llama_tokenize": (_INT, (_POINTER, _TEXT, _INT, _POINTER, _INT, _BOOL, _BOOL)),
    "llama_init_from_model": (_POINTER, (_POINTER, _Block)),
    "llama_free": (None, (_POINTER,)),
    "llama_n_ctx": (ctypes.c_uint32, (_POINTER,)),
    "llama_n_seq_max": (ctypes.c_uint32, (_POINTER,)),
    "llama_set_n_threads": (None, (_POINTER, _INT, _INT)),
    "llama_get_memory": (_POINTER, (_POINTER,)),
    "llama_memory_seq_rm": (_BOOL, (_POINTER, _INT, _INT, _INT)),
    "llama_memory_seq_cp": (None, (_POINTER, _INT, _INT, _INT, _INT)),
    "llama_decode": (_INT, (_POINTER, RowBatch)),
    "llama_get_logits_ith": (_POINTER, (_POINTER, _INT)),
    "llama_state_get_size": (_SIZE, (_POINTER,)),
    "llama_state_get_data": (_SIZE, (_POINTER, _POINTER, _SIZE)),
    "llama_state_set_data": (_SIZE, (_POINTER, _POINTER, _SIZE)),
    "llama_log_set": (None, (_POINTER, _POINTER)),
}
"""Name, result and arguments, as ``llama.h`` declares them."""
_OPTIONAL: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_n_ctx_seq": (ctypes.c_uint32, (_POINTER,)),
    "llama_model_is_hybrid": (_BOOL, (_POINTER,)),
    "llama_model_is_diffusion": (_BOOL, (_POINTER,)),
}
"""Functions that older releases lack."""

_CONTEXT_HEAD: Final = (512, 2048, 512, 1)
"""Defaults of ``n_ctx``, ``n_batch``, ``n_ubatch`` and ``n_seq_max``, the first fields of ``llama_context_params``."""
_CONTEXT_FLAGS: Final = re.compile(rb"\x00\x01\x01\x01\x01\x00\x00\x00")
"""Defaults of ``embeddings``, ``offload_kqv``, ``no_perf``, ``op_offload``, ``swa_full`` and ``kv_unified``."""
_UNIFIED: Final = 5
_SEARCHED: Final = 256
_GPU_LAYERS_OFFSET: Final = 2 * ctypes.sizeof(_POINTER)

_LOGGER: Final = ctypes.CFUNCTYPE(None, ctypes.c_int, _TEXT, _POINTER)
_ERROR_LEVEL: Final = 4
_KEPT_MESSAGES: Final = 4


class Library:
    """The functions of a compiled llama.cpp.

    Args:
        path: the shared library, or the extension module that contains llama.cpp.
        package: the package that it comes with, for messages.

    Raises:
        ModelError: the file cannot be loaded, lacks a function, or has parameters that are not understood.
    """

    def __init__(self, path: Path, package: str) -> None:
        self.package = package
        self.path = path
        self._errors: deque[str] = deque(maxlen=_KEPT_MESSAGES)
        try:
            self._functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise self._error("it cannot be loaded", str(error)) from error
        for name, (result, arguments) in (_FUNCTIONS | _OPTIONAL).items():
            function = getattr(self._functions, name, None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
            elif name in _FUNCTIONS:
                raise self._error("its llama.cpp lacks a function", f"there is no {name}")
        self._unified_offset = self._find_unified()
        # llama.cpp writes its messages to stderr by itself; the last errors are kept for exceptions.
        self._listener = _LOGGER(self._listen)
        self._functions.llama_log_set(self._listener, None)
        self._functions.llama_backend_init()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("llama_"):
            return getattr(self._functions, name)
        raise AttributeError(name)

    def has(self, name: str) -> bool:
        """Whether this release of llama.cpp has a function."""
        return hasattr(self._functions, name)

    def last_errors(self) -> str:
        """Return what llama.cpp has logged as errors since the last call, and forget it."""
        text = " | ".join(self._errors)
        self._errors.clear()
        return text

    def load_model(self, path: Path, *, gpu_layers: int | None) -> int | None:
        """Return the address of the model in a GGUF file, None if llama.cpp refuses the file.

        Args:
            path: the file.
            gpu_layers: how many layers a GPU runs; None leaves the choice to llama.cpp.
        """
        block = self._functions.llama_model_default_params()
        if gpu_layers is not None:
            block.set_number(_GPU_LAYERS_OFFSET, gpu_layers)
        self._errors.clear()
        address: int | None = self._functions.llama_model_load_from_file(str(path).encode(), block)
        return address

    def start_context(self, model: int, *, cells: int, rows: int, sequences: int) -> int:
        """Return the address of a context: the cache, and the buffers of a pass.

        Args:
            model: address of the model.
            cells: tokens in the cache, of all sequences together.
            rows: the most rows of a pass.
            sequences: the most sequences.

        Raises:
            ModelError: there is not enough memory, or the parameters had another effect than the requested one.
        """
        block = self._functions.llama_context_default_params()
        for index, value in enumerate((cells, rows, rows, sequences)):
            block.set_number(4 * index, value)
        # One buffer for all sequences: each may use all of it, and forks share its cells.
        block.set_flag(self._unified_offset, value=True)
        self._errors.clear()
        address: int | None = self._functions.llama_init_from_model(model, block)
        if not address:
            raise ModelError(
                "llama.cpp",
                f"it cannot make a cache for {cells} tokens of {sequences} sequences",
                evidence=self.last_errors(),
                remedy="free memory, or shorten the prompts",
            )
        found = (
            int(self._functions.llama_n_seq_max(address)),
            int(self._functions.llama_n_ctx_seq(address)) if self.has("llama_n_ctx_seq") else cells,
        )
        if found[0] != sequences or found[1] < cells:
            self._functions.llama_free(address)
            raise self._error(
                "its llama.cpp has parameters that are not understood",
                f"asked for {sequences} sequences of up to {cells} tokens, and got {found[0]} of {found[1]}",
            )
        return address

    def _find_unified(self) -> int:
        """Return the offset of ``kv_unified`` in ``llama_context_params``."""
        block = self._functions.llama_context_default_params()
        head = tuple(block.number(4 * index) for index in range(len(_CONTEXT_HEAD)))
        places = [match.start() for match in _CONTEXT_FLAGS.finditer(bytes(block.data)[:_SEARCHED])]
        if head != _CONTEXT_HEAD or len(places) != 1:
            raise self._error(
                "its llama.cpp has parameters that are not understood",
                f"the defaults begin with {head}, and {len(places)} places may be those of the flags",
            )
        return places[0] + _UNIFIED

    def _listen(self, level: int, text: bytes | None, _: object) -> None:
        message = (text or b"").decode("utf-8", "replace").strip()
        if level == _ERROR_LEVEL and message:
            self._errors.append(message)
            logger.debug("llama.cpp: %s", message)

    def _error(self, problem: str, evidence: str) -> ModelError:
        return ModelError(
            f"package {self.package!r}",
            problem,
            evidence=f"{evidence} ({self.path.name})",
            remedy=f"install another release of it; {install('llamacpp')}",
        )

    def __repr__(self) -> str:
        return f"<llama.cpp of {self.package}>"


@cache
def library() -> Library:
    """Return llama.cpp, loaded once in a process.

    Raises:
        ModelError: no installed package has it, or it cannot be used.
    """
    for package, path in _installed():
        return Library(path, package)
    raise ModelError(
        "llama.cpp",
        "it is needed to run the embedded model or a GGUF file, and no installed package has it",
        evidence=f"looked for {' and '.join(package.replace('_', '-') for package, _ in _PACKAGES)}",
        remedy=install("llamacpp"),
    )


def _installed() -> Iterator[tuple[str, Path]]:
    """The packages that have llama.cpp, with its file."""
    for package, patterns in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec is not None else None) or ():
            for path in (path for pattern in patterns for path in sorted(Path(folder).glob(pattern))):
                yield package, path


PASS_ROWS: Final = 512
"""The most rows of one call of llama.cpp; longer requests run in several."""


class Part(NamedTuple):
    """Some rows as llama.cpp reads them.

    Attributes:
        batch: with the addresses of ``arrays``.
        requested_rows: the rows whose logits are requested.
        arrays: what ``batch`` refers to.
    """

    batch: RowBatch
    requested_rows: list[int]
    arrays: tuple[object, ...]


class Rows:
    """The rows of a pass: tokens with their positions and sequences."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.requested_count = 0
        self._long: list[tuple[int, int]] = []
        self._positions: list[int] = []
        self._numbers: list[list[int]] = []
        self._requested: list[bool] = []

    def add(self, token: int, position: int, numbers: list[int], *, requested: bool) -> None:
        """Add a row of the sequences ``numbers``, which must not change any more."""
        self.tokens.append(token)
        self._positions.append(position)
        self._numbers.append(numbers)
        self._requested.append(requested)
        self.requested_count += requested

    def begin_long(self, count: int) -> None:
        """Note that the next ``count`` rows are those of one long request."""
        self._long.append((len(self.tokens), len(self.tokens) + count))

    def calls(self, short: int) -> Iterator[tuple[int, int]]:
        """The ranges of rows that run in one call: up to ``PASS_ROWS`` of a long request, or ``short`` of others."""
        at = 0
        for start, stop in (*self._long, (len(self.tokens), len(self.tokens))):
            for first, last, most in ((at, start, short), (start, stop, PASS_ROWS)):
                for begin in range(first, last, most):
                    yield begin, min(begin + most, last)
            at = stop

    def part(self, start: int, stop: int, *, companion: int | None = None) -> Part:
        """Return the rows from ``start`` to before ``stop``.

        Args:
            start: the first row.
            stop: the row after the last.
            companion: a sequence that gets a copy of the last row, None for no copy.
        """
        copies = [] if companion is None else [[companion]]
        selected = [*range(start, stop), *(stop - 1 for _ in copies)]
        tokens = np.array([self.tokens[row] for row in selected], dtype=np.int32)
        positions = np.array([self._positions[row] for row in selected], dtype=np.int32)
        sequences = [*self._numbers[start:stop], *copies]
        counts = np.array([len(numbers) for numbers in sequences], dtype=np.int32)
        numbers = np.array([number for each in sequences for number in each], dtype=np.int32)
        starts = (np.cumsum(counts) - counts) * numbers.itemsize + numbers.ctypes.data
        pointers = starts.astype(np.uintp)
        requested = np.array([*self._requested[start:stop], *(False for _ in copies)], dtype=np.int8)
        arrays = (tokens, positions, counts, pointers, requested)
        addresses = [each.ctypes.data for each in arrays]
        batch = RowBatch(len(tokens), addresses[0], None, *addresses[1:])
        return Part(batch, np.flatnonzero(requested).tolist(), (*arrays, numbers))
