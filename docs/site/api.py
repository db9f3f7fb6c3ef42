"""The reference of public names: the signature and the docstring of each, with its members."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from docstrings import summary, to_markdown
from pages import Page

import structgen
from structgen.engine.matcher import Explanation
from structgen.integrations import llama_cpp, openai_server

__all__ = ["pages"]


@dataclass(frozen=True)
class _Part:
    """A page: its names, with their values, in order."""

    path: str
    title: str
    purpose: str
    names: Mapping[str, Any]


_CORE: Final = {
    "grammars": (
        "Grammars",
        "What a model may write, as a value that knows no tokens. All names are in `structgen`.",
        "regex json_schema lark gbnf ebnf structural_tag load literal optional select Grammar Limits",
    ),
    "engine": (
        "Constraints and matchers",
        "A grammar compiled for the tokens of a model, and the state of one sequence. All names are in `structgen`.",
        "Vocabulary compile Constraint Matcher fill_masks memory cache_limits clear_caches",
    ),
    "generation": (
        "Models and generation",
        "Models, and the functions that let them write. All names are in `structgen`.",
        "load_model load_diffusion_model generate sample infill Result Autoregressive Unmasking Greedy Multinomial",
    ),
    "programs": (
        "Programs",
        "Typed functions that a model answers. Both names are in `structgen`; `structgen.program` has more.",
        "program extract",
    ),
}
"""Title, purpose and names of the pages for what ``structgen`` itself has."""
_MODULES: Final = (
    *("program", "grammars", "samplers", "potentials", "drafters", "shapes", "verification", "diffusion", "policies"),
    *("errors", "models", "methods.strategies", "testing"),
)
_HIDDEN: Final = frozenset(("native", "engine", "digest", "children"))
"""Members that are public for other packages of ours only."""
_LINE: Final = 88
_LONG: Final = 60


def _parts() -> Iterator[_Part]:
    listed = {name for _, _, names in _CORE.values() for name in names.split()}
    if missing := set(structgen.__all__) - listed:
        raise ValueError(f"docs/site/api.py: no page has {', '.join(sorted(missing))}")
    for path, (title, purpose, names) in _CORE.items():
        held = {name: getattr(structgen, name) for name in names.split()}
        yield _Part(path, title, purpose, held | ({"Explanation": Explanation} if path == "engine" else {}))
    for name in _MODULES:
        module = importlib.import_module(f"structgen.{name}")
        names = {each: getattr(module, each) for each in module.__all__}
        yield _Part(f"structgen.{name}", f"structgen.{name}", module.__doc__ or "", names)
    found = {"openai_server.remote": openai_server.remote, "llama_cpp.sampler": llama_cpp.sampler}
    yield _Part("structgen.integrations", "structgen.integrations", "Other libraries and servers.", found)


def pages() -> Iterator[Page]:
    """One page for each module, and several for ``structgen`` itself."""
    parts = list(_parts())
    links: dict[str, str] = {}
    for part in parts:
        for name in part.names:
            place = f"{part.path}.md#{name}"
            links.setdefault(name, place)
            links[f"{part.path.removeprefix('structgen.')}.{name}"] = place
    for part in parts:
        yield Page(f"reference/api/{part.path}.md", "\n".join(_page(part, links)) + "\n")


def _page(part: _Part, links: Mapping[str, str]) -> Iterator[str]:
    yield f"# {part.title}\n\n{to_markdown(part.purpose, links)}\n"
    yield "| name | what it is |\n| --- | --- |"
    for name, value in part.names.items():
        cell = to_markdown(summary(_doc(value)), links).replace("|", "\\|").replace("\n", " ")
        yield f"| [`{name}`](#{name}) | {cell} |"
    for name, value in part.names.items():
        yield from ("", f"## {name} {{ #{name} }}", "")
        if inspect.isclass(value):
            yield from _class(name, value, links)
        elif callable(value):
            yield from (_code(_signature(name, value)), "", to_markdown(_doc(value), links))
        else:
            yield _code(f"{name}: {type(value).__name__}")


def _class(name: str, value: type, links: Mapping[str, str]) -> Iterator[str]:
    bases = [base.__name__ for base in value.__bases__ if base not in (object, *_unnamed(value))]
    head = f"class {name}" + (f"({', '.join(bases)})" if bases else "")
    yield _code("\n".join(line for line in (head, _construction(name, value)) if line))
    yield from ("", to_markdown(_doc(value), links))
    for member, held in _members(value):
        yield from ("", f"### {name}.{member} {{ #{name}.{member} }}", "")
        getter = _getter(held)
        kind = _returned(getter) if getter else ""
        yield _code(_signature(member, held) if getter is None else f"{member}: {kind}" if kind else member)
        yield from ("", to_markdown(_doc(held), links))


def _unnamed(value: type) -> list[type]:
    """Bases that say nothing to a reader: native and private ones."""
    return [base for base in value.__bases__ if base.__name__.startswith("_") or base.__name__ == value.__name__]


def _construction(name: str, value: type) -> str:
    """How a class is called; empty for those that nobody calls: protocols, enumerations, what other calls return."""
    if getattr(value, "_is_protocol", False) or issubclass(value, enum.Enum):
        return ""
    try:
        made = _signature(name, value)
    except ValueError:  # a native class
        return ""
    return "" if made == f"{name}()" or "_native" in str(inspect.signature(value)) else made


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that the class or a base of ours explains, in the order of their definition."""
    seen = set[str]()
    for base in value.__mro__:
        if not base.__module__.startswith("structgen"):
            continue
        for name, static in vars(base).items():
            if name.startswith("_") or name in seen or name in _HIDDEN:
                continue
            held = static if _getter(static) else getattr(value, name)
            if (_getter(static) or inspect.isroutine(held)) and inspect.getdoc(_getter(held) or held):
                seen.add(name)
                yield name, held


def _getter(static: Any) -> Any:
    """The function that a property calls; None for anything else."""
    return getattr(static, "fget", None) or (static.func if isinstance(static, functools.cached_property) else None)


def _is_native(value: Any) -> bool:
    return type(value).__name__ in ("nb_method", "nb_func")


def _doc(value: Any) -> str:
    """The docstring; of a native function without the line that has its signature."""
    value = _getter(value) or value
    doc = inspect.getdoc(value) or ""
    if inspect.isclass(value) and doc.startswith(f"{value.__name__}("):
        return ""  # what a dataclass writes
    return doc.partition("\n")[2].strip() if _is_native(value) else doc


def _signature(name: str, value: Any) -> str:
    """The call with its types, a parameter a line where it is long."""
    if _is_native(value):
        return _plain((inspect.getdoc(value) or name).partition("\n")[0])
    found = inspect.signature(value)
    found = found.replace(parameters=[_shortened(each) for each in found.parameters.values()])
    if inspect.isclass(value):
        found = found.replace(return_annotation=found.empty)
    whole = _plain(f"{name}{found}")
    if len(whole) <= _LINE:
        return whole
    lines, is_named = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            is_named = True
        if parameter.kind is parameter.KEYWORD_ONLY and not is_named:
            lines.append("    *,")
            is_named = True
        lines.append(f"    {parameter},")
    result = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    return _plain("\n".join([f"{name}(", *lines, f"){result}"]))


class _Default:
    """A default value as a reader would write it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        if isinstance(self.value, type):
            return self.value.__name__
        if len(repr(self.value)) <= _LONG and not inspect.isroutine(self.value):
            return repr(self.value)
        is_unnamed = isinstance(self.value, tuple) or callable(self.value)
        return "..." if is_unnamed else f"{type(self.value).__name__}(...)"


def _shortened(parameter: inspect.Parameter) -> inspect.Parameter:
    has_none = parameter.default is parameter.empty
    return parameter if has_none else parameter.replace(default=_Default(parameter.default))


def _returned(getter: Any) -> str:
    """The type of a property."""
    if _is_native(getter):
        return _plain((inspect.getdoc(getter) or "").partition("\n")[0].rpartition("-> ")[2])
    kind = inspect.signature(getter).return_annotation
    return "" if kind is inspect.Signature.empty else _plain(f": {_annotation(kind)!r}")[2:]


def _annotation(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def _plain(text: str) -> str:
    """Annotations as they were written: without quotes, addresses and the names of our modules."""
    text = re.sub(r"(?<=[:>] )(?:'([^']+)'|\"([^\"]+)\")", lambda found: found[1] or found[2], text)
    text = re.sub(r" at 0x[0-9a-f]+", "", text).replace("<factory>", "...")
    return re.sub(r"\b(?:structgen(?:_kernels)?(?:\.\w+)*|typing|collections\.abc)\.(?=\w)", "", text)


def _code(text: str) -> str:
    return f"```py\n{text}\n```"
