"""Triton's interpreter, without what it does anew at each call of a function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

__all__ = ["quick_interpreter"]


@contextmanager
def quick_interpreter() -> Iterator[None]:
    """Patch the language once per launch, not for each function that a kernel calls, and make no table for a type.

    The functions that a kernel calls find the language as the launch has patched it; patching it again replaces each
    function by another one that does the same.
    """
    from triton import language
    from triton.runtime import interpreter

    patch, numpy_type = interpreter._patch_lang, interpreter._get_np_dtype
    patched, types = set[int](), dict[str, Any]()

    def patch_once(function: Any) -> Any:
        modules = {id(each) for each in function.__globals__.values() if each is language or each is language.core}
        if modules <= patched:
            return None  # only a launch looks at it, and a launch begins with nothing patched
        is_launch = not patched
        patched.update(modules)
        scope = patch(function)
        if is_launch:
            restore = scope.restore

            def restored() -> None:
                patched.clear()
                restore()

            scope.restore = restored
        return scope

    def known_type(of: Any) -> Any:
        if type(of) is not language.dtype:
            return numpy_type(of)
        if of.name not in types:
            types[of.name] = numpy_type(of)
        return types[of.name]

    with mock.patch.multiple(interpreter, _patch_lang=patch_once, _get_np_dtype=known_type):
        yield
