"""A constraint as a sampler of llama.cpp, in any binding's chain, without Python in the loop.

>>> with sampler(constraint, max_tokens=200) as constrained:                                    # doctest: +SKIP
...     constrained.add_to(chain)              # first, before samplers that drop candidates
...     ...                                    # llama_sampler_sample(chain, context, -1), as often as it takes
...     constrained.check()                    # raises what went wrong; so does the end of the block

llama.cpp knows a sampler by a table of C functions (``llama_sampler_i``), which are in structgen's native library.  The
chain may therefore be that of ``xllamacpp``, of ``llama-cpp-python``, or of any program in this process.
For the Python callbacks of ``llama-cpp-python`` see :mod:`structgen.integrations.llama_cpp_python`.

Source: ``include/llama.h`` of llama.cpp.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

from structgen_kernels import _native

from structgen.decode.step.context import refuse_temperatures
from structgen.engine import Constraint
from structgen.engine.arguments import wrong_grammar
from structgen.errors import (
    ArgumentError,
    BudgetError,
    GenerationError,
    LimitExceeded,
    ModelError,
    VocabularyError,
    found,
)
from structgen.models.llama_cpp.library import library as installed_library

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ConstraintSampler", "check_constraint", "refusal", "sampler"]

_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_size_t
_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "llama_sampler_init": (_POINTER, (_POINTER, _POINTER)),
    "llama_sampler_name": (_POINTER, (_POINTER,)),
    "llama_sampler_accept": (None, (_POINTER, _INT)),
    "llama_sampler_apply": (None, (_POINTER, _POINTER)),
    "llama_sampler_reset": (None, (_POINTER,)),
    "llama_sampler_clone": (_POINTER, (_POINTER,)),
    "llama_sampler_free": (None, (_POINTER,)),
    "llama_sampler_copy": (None, (_POINTER, _POINTER)),
    "llama_sampler_chain_add": (None, (_POINTER, _POINTER)),
    "llama_sampler_init_greedy": (_POINTER, ()),
    "llama_sampler_init_top_k": (_POINTER, (_INT,)),
}
"""Name, result and arguments, as ``llama.h`` declares them."""
_COPIES: Final = "llama_sampler_copy"
"""A function that older releases lack."""
_CALLED: Final = ("name", "accept", "apply", "reset", "clone", "free")
"""The functions of the table, in its order."""
_COPY, _SLOTS = 11, 32
"""The place of ``copy_state``, which not all releases have, and more places than any release has."""
_SHOWN: Final = 40


class _Candidate(ctypes.Structure):
    """``llama_token_data``."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _Candidates(ctypes.Structure):
    """``llama_token_data_array``."""

    _fields_ = (("data", _POINTER), ("size", _SIZE), ("selected", ctypes.c_int64), ("sorted", ctypes.c_bool))


class _Functions:
    """The functions of one llama.cpp that have to do with samplers."""

    def __init__(self, source: Any) -> None:
        self.has_copy = hasattr(source, _COPIES)
        for name, (result, arguments) in _FUNCTIONS.items():
            if name == _COPIES and not self.has_copy:
                continue
            try:
                address = ctypes.cast(getattr(source, name), _POINTER).value
            except (AttributeError, ctypes.ArgumentError) as error:
                raise ArgumentError(
                    "sampler",
                    "library must have the C functions of llama.cpp",
                    evidence=f"{found(source)}, and {name} is none of its functions",
                    remedy="pass the module llama_cpp, a ctypes.CDLL, or None for the llama.cpp that is installed",
                ) from error
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(address or 0))
        types = getattr(source.llama_sampler_free, "argtypes", None)
        self.parameter: Any = types[0] if types else _POINTER
        self._check_table()
        self._check_candidates()

    def __getattr__(self, name: str) -> Any:  # for type checkers: what __init__ sets
        raise AttributeError(name)

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(getattr(self, name), _POINTER).value or 0

    def _check_table(self) -> None:
        """Check that llama.cpp calls the functions of a table in the order in which ``llama.h`` had them."""
        called: list[int] = []
        made = 0

        def slot(at: int) -> Any:
            def note(_sampler: int | None, _argument: int | None) -> int:
                called.append(at)
                return made

            return ctypes.CFUNCTYPE(_POINTER, _POINTER, _POINTER)(note)

        slots = [slot(at) for at in range(_SLOTS)]
        table = (_POINTER * _SLOTS)(*(ctypes.cast(each, _POINTER) for each in slots))
        made = self.llama_sampler_init(ctypes.addressof(table), ctypes.addressof(table))
        array = _Candidates()
        for name in _CALLED:
            extra = {"accept": (0,), "apply": (ctypes.addressof(array),)}.get(name, ())
            getattr(self, f"llama_sampler_{name}")(made, *extra)
        expected = list(range(len(_CALLED)))
        if self.has_copy:
            pair = [self.llama_sampler_init(ctypes.addressof(table), ctypes.addressof(table)) for _ in range(2)]
            self.llama_sampler_copy(*pair)
            expected.append(_COPY)
        if called != expected:
            raise _unknown_layout("llama_sampler_i", f"calls go to its functions {called}")

    def _check_candidates(self) -> None:
        """Check the array of candidates by what llama.cpp's own samplers do with one."""
        given = ((10, 1.0), (11, 4.0), (12, 2.0), (13, 3.0))
        data = (_Candidate * len(given))(*(_Candidate(token, logit) for token, logit in given))
        array = _Candidates(data=ctypes.addressof(data), size=len(data), selected=-1, sorted=False)
        selected = []
        for own in (self.llama_sampler_init_greedy(), self.llama_sampler_init_top_k(2)):
            self.llama_sampler_apply(own, ctypes.addressof(array))
            self.llama_sampler_free(own)
            selected.append(array.selected)
        kept = [(each.id, each.logit) for each in data[: array.size]]
        if selected[0] != 1 or kept != [(11, 4.0), (13, 3.0)] or not array.sorted:
            raise _unknown_layout("llama_token_data_array", f"selected {selected[0]}, then kept {kept}")


def _unknown_layout(name: str, evidence: str) -> ModelError:
    return ModelError(
        "llama.cpp",
        f"its {name} has a layout that is not understood",
        evidence=evidence,
        remedy="install another release of the package that it comes with",
    )


@cache
def _functions(source: Any) -> _Functions:
    return _Functions(source)


def sampler(constraint: Constraint, *, max_tokens: int | None = None, library: Any = None) -> ConstraintSampler:
    """Return a sampler for a chain of llama.cpp that allows only what the grammar allows.

    It comes first in the chain, since it can only choose among the candidates that the samplers before it have left.
    ``apply`` sets the logit of every other candidate to minus infinity; that takes one look-up for each, and the mask
    is that of ``Matcher.fill_mask``.

    Args:
        constraint: compiled for the vocabulary of the model's file: ``Vocabulary.load("model.gguf")``.
        max_tokens: complete the output within this many tokens, EOS not counted.
        library: the llama.cpp that the chain belongs to, by its functions: the module ``llama_cpp`` of
            ``llama-cpp-python``, or a ``ctypes.CDLL``.  None is the one that ``structgen.load_model`` uses.

    Raises:
        BudgetError: the shortest string takes more than ``max_tokens``.
        VocabularyError: the vocabulary has no token that ends an output.
        ModelError: llama.cpp is not installed, or its structs are not laid out as in the known releases.
        ArgumentError: an argument has the wrong type.
    """
    check_constraint(constraint, "sampler", max_tokens)
    functions = _functions(installed_library() if library is None else library)
    native = _native.ChainSampler(constraint.native, max_tokens)
    address = native.wrap(functions.address("llama_sampler_init"))
    if not address:
        raise _unknown_layout("llama_sampler", "llama_sampler_init does not store table and context")
    return ConstraintSampler(constraint, native, functions, address)


@final
class ConstraintSampler:
    """A ``llama_sampler`` that follows one output; made by :func:`sampler`.

    Ownership is llama.cpp's: ``add_to`` hands the sampler to a chain, which frees it with itself, and ``release`` hands
    it to you.  Until then it belongs to this object, which frees it in ``close``.  The state that ``check`` and
    ``tokens`` read outlives both.

    *What goes wrong never lets other text through unseen.*  llama.cpp has no way to report errors of a sampler.  The
    first is kept: a token was accepted that is not allowed, all candidates are excluded, or a bound of ``Limits`` was
    reached.  From then on the only candidate is EOS, so that the output ends, until ``llama_sampler_reset``;
    ``check`` raises the error.  Where no candidate is left the logits are all minus infinity; the sampler that chooses
    takes one nevertheless, and its ``accept`` is the error.

    Clones (``llama_sampler_clone`` of the chain) are independent, and begin with the same output and the same error;
    ``clone_at`` finds the state of one.  ``llama_sampler_copy`` sets the state, and hides no error.  A sampler may move
    between threads, but serves one output at a time.

    Args:
        constraint: the constraint.
        native: the state.
        functions: of the llama.cpp that ``address`` belongs to.
        address: of the ``llama_sampler``, None if it belongs to a chain.
    """

    def __init__(
        self, constraint: Constraint, native: _native.ChainSampler, functions: _Functions, address: int | None
    ) -> None:
        self._constraint = constraint
        self._native = native
        self._functions = functions
        self._address = address

    @property
    def pointer(self) -> int:
        """The address of the ``llama_sampler``, which still belongs to this object.

        Raises:
            GenerationError: it was handed over, or is closed.
        """
        if self._address is None:
            raise GenerationError(
                "sampler of llama.cpp",
                "it no longer belongs to this object",
                evidence="add_to, release or close was called",
                remedy="make another sampler for another chain",
            )
        return self._address

    @property
    def _as_parameter_(self) -> Any:
        """The pointer that ctypes passes to llama.cpp; the sampler still belongs to this object."""
        return ctypes.cast(self.pointer, self._functions.parameter)

    def add_to(self, chain: Any) -> None:
        """Append the sampler to a chain, which from then on owns it.

        Args:
            chain: the ``llama_sampler`` of the chain, as an address or as a pointer of ctypes.
        """
        address = _address(chain, "add_to")
        self._functions.llama_sampler_chain_add(address, self.pointer)
        self._address = None

    def release(self) -> Any:
        """Return the sampler for ``llama_sampler_chain_add``, and give up its ownership: the chain must free it."""
        parameter = self._as_parameter_
        self._address = None
        return parameter

    def close(self) -> None:
        """Free the sampler if it was not handed over."""
        if self._address is not None:
            self._functions.llama_sampler_free(self.pointer)
            self._address = None

    def clone_at(self, pointer: Any) -> ConstraintSampler:
        """Return the state of a clone, which its chain owns.

        Args:
            pointer: of the clone: ``llama_sampler_chain_get(chain, 0)``.

        Raises:
            ArgumentError: it points to no sampler of structgen.
        """
        native = _native.ChainSampler.find(_address(pointer, "clone_at"))
        if native is None:
            raise ArgumentError(
                "clone_at",
                "expected a sampler of structgen",
                evidence="found another kind of sampler",
                remedy="pass llama_sampler_chain_get(chain, i), with i the place of the constraint in the chain",
            )
        return ConstraintSampler(self._constraint, native, self._functions, None)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the output so far, EOS left out."""
        return self._native.tokens

    @property
    def is_complete(self) -> bool:
        """Whether the output so far is a string of the grammar."""
        return self._native.is_accepting

    @property
    def is_terminated(self) -> bool:
        """Whether EOS was accepted."""
        return self._native.is_terminated

    def check(self) -> None:
        """Raise the first error; ``llama_sampler_reset`` forgets it after that.

        Raises:
            GenerationError: see the class.
            LimitExceeded: a bound of ``Limits`` ended the output; the error has its text, which is not complete.
        """
        fault = self._native.fault()
        if fault is None:
            return
        cause, before, token, candidates, is_starved, what = fault
        place = f"after {len(before)} tokens, {self._constraint.vocabulary.decode(before)[-_SHOWN:]!r}"
        if cause == "failed" and hasattr(self._constraint.limits, what):
            maximum = getattr(self._constraint.limits, what)
            raise LimitExceeded("sampler of llama.cpp", limit=what, maximum=maximum).ended(
                self._constraint.vocabulary.decode(before), before
            )
        if cause == "failed":
            raise GenerationError(
                "sampler of llama.cpp",
                "the grammar cannot be followed",
                evidence=f"{what or 'out of memory'} {place}",
                remedy="simplify the grammar",
            )
        if is_starved:
            raise GenerationError(
                "sampler of llama.cpp",
                f"none of the {candidates} candidates that it was given may come next",
                evidence=place + ("" if token < 0 else f"; the token {token} was taken nevertheless"),
                remedy="put it first in the chain, before samplers that drop or exclude candidates",
            )
        raise refusal(
            "sampler of llama.cpp",
            self._constraint,
            before,
            token,
            "sample with a chain that it is part of, let no later sampler raise logits, and accept sampled tokens only",
        )

    def __enter__(self) -> ConstraintSampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()
        if kind is None:
            self.check()

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<sampler of llama.cpp after {len(self.tokens)} tokens>"


def check_constraint(constraint: object, call: str, max_tokens: int | None) -> None:
    """Check what every coupling to llama.cpp takes.

    Raises:
        ArgumentError: it is no constraint.
        VocabularyError: nothing ends an output.
        ValueError: parts of the grammar have a temperature of their own.
        BudgetError: the shortest string takes more than ``max_tokens``.
    """
    if not isinstance(constraint, Constraint):
        raise wrong_grammar(call, constraint, expected="a Constraint, sg.compile(grammar, vocabulary)")
    if not constraint.vocabulary.eos:
        raise VocabularyError(
            "vocabulary",
            "no token ends an output",
            remedy="name those that do: Vocabulary.load(..., eos=[...])",
        )
    refuse_temperatures(constraint)
    if max_tokens is not None and not constraint.matcher().completes_within(max_tokens):
        raise BudgetError(budget=max_tokens, needed=constraint.min_tokens())


def refusal(subject: str, constraint: Constraint, before: list[int], token: int, remedy: str) -> GenerationError:
    """Make the error for a token that may not come after the tokens ``before``."""
    vocabulary = constraint.vocabulary
    spelled = vocabulary.tokens[token] if 0 <= token < len(vocabulary.tokens) else b""
    return GenerationError(
        subject,
        f"token {token} ({spelled!r}) at position {len(before)} of the output may not come there",
        evidence=f"the output before it ends with {vocabulary.decode(before)[-_SHOWN:]!r}",
        remedy=remedy,
    )


def _address(value: Any, call: str) -> int:
    """The address in an int or a pointer of ctypes."""
    try:
        address = value if isinstance(value, int) else ctypes.cast(value, _POINTER).value
    except ctypes.ArgumentError:
        address = None
    if not address:
        raise ArgumentError(
            call, "expected the address of a llama_sampler", evidence=found(value), remedy="pass an int or a pointer"
        )
    return address
