"""Attributes and names of generated Python, judged by ``getattr`` on real objects and by ``ast``."""

from __future__ import annotations

import ast
import builtins
import importlib
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import literal
from structgen.methods.monitors.python_names import python_attributes, python_names
from structgen.models import HashModel
from structgen.testing import check_potential

pytest.importorskip("jedi", reason="the extra 'monitors' is not installed")

PROJECT = Path(__file__).resolve().parents[3] / "fixtures" / "python_project"
BEFORE = "from shop.orders import sample_order\nfrom shop.people import sample_customer\n\n\ndef main(other):\n"
BEFORE += "    order = sample_order()\n    customer = sample_customer()\n"
GRAMMAR = literal("x")
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])


@pytest.fixture(scope="module")
def shop() -> Iterator[dict[str, Any]]:
    """The objects that the names of the code stand for."""
    sys.path.insert(0, str(PROJECT))
    try:
        orders, people = (importlib.import_module(name) for name in ("shop.orders", "shop.people"))
        yield {"order": orders.sample_order(), "customer": people.sample_customer()}
    finally:
        sys.path.remove(str(PROJECT))
        for name in [each for each in sys.modules if each.split(".")[0] == "shop"]:
            del sys.modules[name]


def score(rule: Potential, text: str) -> float:
    data = text.encode()
    return rule.complete(Hypothesis(GRAMMAR, BYTES, tuple(data), data))


def dereferences(code: str, objects: dict[str, Any]) -> tuple[int, int]:
    """Attributes that the code reads, and how many of them the objects have; calls are executed."""
    total = right = 0

    def value(node: ast.expr) -> Any:
        nonlocal total, right
        if isinstance(node, ast.Name):
            return objects[node.id]
        if isinstance(node, ast.Call):
            called = value(node.func)
            return called() if callable(called) else None
        assert isinstance(node, ast.Attribute)
        owner = value(node.value)
        total += 1
        if owner is None or not hasattr(owner, node.attr):
            return None
        right += 1
        return getattr(owner, node.attr)

    for statement in ast.parse(code).body:
        assert isinstance(statement, ast.Assign)
        value(statement.value)
    return total, right


STATEMENTS = regex(r"(?:    [a-c] = (?:order|customer)(?:\.[a-zß]{2,12}(?:\(\))?){1,3}\n){1,2}")


def vocabulary() -> Vocabulary:
    """Bytes, and pieces of such code as a tokenizer has them, across boundaries too."""
    pieces = [
        "order",
        "customer",
        "    ",
        " = ",
        ".first",
        ".to",
        "tal",
        "total()",
        "()\n",
        "()",
        ".customer.",
        "address",
    ]
    pieces += [
        ".name",
        "sku",
        "buyer().",
        "first.qu",
        "antity",
        "pri",
        "ce\n",
        ".str",
        "aße",
        "street\n",
        "initials",
        "lab",
    ]
    pieces += ["a = order.", "b = customer.", "capitalize", "upper()", "city.up"]
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in pieces)], eos=[0])


# Attributes that all objects have need not be written: the grammar has no underscores.


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(SMC(3), id="default"),
        pytest.param(SMC(3, proposal=AWRS(mask_after=None)), id="unmasked"),
    ],
)
def test_every_attribute_exists(
    sampler: SMC, shop: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    tokens = vocabulary()
    counts = {}
    for name, potentials in (("free", []), ("monitored", [python_attributes(PROJECT, before=BEFORE)])):
        total = right = outputs = 0
        for seed in range(8):
            model = HashModel(tokens, seed=seed)
            found = sample(model, "code", STATEMENTS, sampler=sampler, potentials=potentials, max_tokens=30, seed=seed)
            for each in found.samples:
                taken, known = dereferences(_dedented(each.result.text), shop)
                total, right, outputs = total + taken, right + known, outputs + 1
        counts[name] = right, total
        record_property(name, f"{right} of {total} attributes in {outputs} outputs exist")
    assert counts["monitored"][0] == counts["monitored"][1] >= 5, counts
    assert counts["free"][0] < counts["free"][1] / 2, counts


def _dedented(code: str) -> str:
    return code.replace("    ", "")


def test_attributes_are_those_that_the_objects_have(shop: dict[str, Any]) -> None:
    """The monitor's attributes after each receiver are those of ``dir`` of the real object."""
    rule = python_attributes(PROJECT, before=BEFORE)
    receivers = {
        "order": shop["order"],
        "order.first": shop["order"].first,
        "order.buyer()": shop["customer"],
        "customer.address": shop["customer"].address,
        "customer.initials": "",
        "customer.address.label().upper()": "",
    }
    for text, owner in receivers.items():
        for name in [*dir(owner), "straße", "sku", "street", "nothing", "tot", "totals", "x"]:
            allowed = score(rule, f"    x = {text}.{name}\n") == 0
            if not name.startswith("__"):  # jedi's list of those leaves some out
                assert allowed == hasattr(owner, name), (text, name)
            assert not allowed or hasattr(owner, name), (text, name)


def test_dots_elsewhere_are_left_alone() -> None:
    rule = python_attributes(PROJECT, before=BEFORE)
    for text in (
        '    x = "order.nothing"\n',
        "    x = 'it is.nothing\\n of mine'\n",
        '    """order.nothing\n    order.nothing"""\n',
        "    x = 1.5 + 2.\n",
        "    # order.nothing\n    x = order.first\n",
        "    from . import nothing\n",
        "    from .people import Nothing\n",
        "    x = f'order.nothing {order.first.sku}'\n",
        "    x = ...\n",
        "    x = order.first.sku + customer.name.upper()\n",
        "    import os.path\n",
        "    from shop.people import Customer\n",
    ):
        assert score(rule, text) == 0, text
    for text in (
        "    x = f'order {order.nothing}'\n",
        "    x = [order][0].nothing\n",
        "    x = 'text'.nothing\n",
        "    import os.nothing\n",
        "    from shop.nothing import Customer\n",
        "    x = (order\n         .nothing)\n",
    ):
        assert score(rule, text) == -math.inf, text


def test_receivers_of_which_nothing_is_known() -> None:
    text = "    x = other.anything\n"
    assert score(python_attributes(PROJECT, before=BEFORE), text) == -math.inf
    assert score(python_attributes(PROJECT, before=BEFORE, unknown="allow"), text) == 0
    with pytest.raises(ValueError, match="must be 'forbid' or 'allow'"):
        python_attributes(PROJECT, unknown="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be a folder"):
        python_attributes(PROJECT / "nowhere")


@pytest.mark.exhaustive
def test_names_are_in_scope() -> None:
    """By ``ast``, every name that is read is bound before, or built in."""
    rule = python_names(PROJECT, before=BEFORE)
    bound = {"order", "customer", "other", "main", "sample_order", "sample_customer", *dir(builtins)}
    for name in (
        "order",
        "customer",
        "other",
        "len",
        "orders",
        "ord",
        "custom",
        "nothing",
        "sample_order",
        "x",
        "prin",
    ):
        for template in (
            "    y = {}\n",
            "    return {}\n",
            "    print({})\n",
            "    y = 1 + {}\n",
            "    print(order, {})\n",
            "    y = not {}\n",
            "    y = 3 if {} else 4\n",
        ):
            text = template.format(name)
            tree = ast.parse("def f():\n" + text)
            read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            assert (score(rule, text) == 0) == (read <= bound), text
    for text in (
        "    y = 5\n    z = y\n",
        "    y = 'nothing'\n",
        "    y = None\n",
        "    y = (1, 2)\n",
        "    y=order\n",
        "    def nothing(one, two):\n        return one\n",
        "    print(order, sep='')\n",
        "    # y = nothing\n",
        "    y = 'y = nothing'\n",
        "    y = order.first\n",
        "    y = lambda nothing: 1\n",
    ):
        assert score(rule, text) == 0, text


def test_the_laws_of_potentials_hold() -> None:
    rule = python_attributes(PROJECT, before=BEFORE)
    check_potential(rule, compile(STATEMENTS, vocabulary()), random.Random(7), walks=6, length=16)


def test_without_jedi_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jedi", None)
    with pytest.raises(GenerationError, match=r"jedi cannot be imported.*pip install 'structgen-lm\[monitors\]'"):
        python_attributes(PROJECT)


@pytest.mark.nightly
@pytest.mark.model
def test_the_embedded_model_writes_attributes_that_exist(
    shop: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    from structgen.models import load_model

    model = load_model()
    prompt = "Complete the Python code:\n" + BEFORE
    grammar = regex(r"    a = order\.[a-z_]{2,20}\.[a-z_]{2,20}\n")
    counts = {}
    for name, potentials in (("free", []), ("monitored", [python_attributes(PROJECT, before=BEFORE)])):
        found = sample(model, prompt, grammar, sampler=SMC(4), potentials=potentials, max_tokens=24, chat=False)
        pairs = [dereferences(_dedented(each.result.text), shop) for each in found.samples]
        counts[name] = sum(known for _, known in pairs), sum(taken for taken, _ in pairs)
        record_property(name, f"{counts[name][0]} of {counts[name][1]} attributes exist")
    assert counts["monitored"][0] == counts["monitored"][1] > 0, counts
