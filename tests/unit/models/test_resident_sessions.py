"""Sessions whose logits stay on the device, and compiled models: both give the same answers as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from result_equality import assert_alike

from structgen.decode import Greedy, Multinomial, generate
from structgen.decode.speculative.drafters.auto import forget
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.models import from_transformers, load_model
from structgen.models.protocol import ResidentSession
from structgen.models.protocol.tree import TokenTree
from structgen.models.session import ChainSession

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = [5, 80, 3, 200, 99]
TREE = TokenTree((11, 12, 13, 14), (-1, 0, -1, 2))
GRAMMAR = regex('\\{"name": "[a-z]{1,8}", "the": (true|false|[0-9]{1,4})\\}')
CLOSE = 1e-4


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>"
    )


@pytest.fixture(scope="module")
def network(tiny_folder: Path) -> Any:
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)


@pytest.fixture(scope="module", params=["transformers", "llama"])
def models(request: pytest.FixtureRequest, tiny_folder: Path, network: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The same model with its logits on the host, and on the device."""
    if request.param == "transformers":
        return from_transformers(network, tokenizer), from_transformers(network, tokenizer, resident=True)
    from structgen.models.llama.model import LlamaModel

    settings: dict[str, Any] = {"name": "tiny", "device": torch.device("cpu"), "dtype": torch.float32}
    return LlamaModel(tiny_folder, **settings), LlamaModel(tiny_folder, **settings, resident=True)


def test_sessions_say_where_their_logits_are(models: tuple[Any, Any]) -> None:
    assert [isinstance(model.start(), ResidentSession) for model in models] == [True, True]
    assert [model.start().is_resident for model in models] == [False, True]


def test_the_same_rows(models: tuple[Any, Any]) -> None:
    """After the last token, after each, and after a tree they agree; a path is kept; arrays are there as ever."""
    plain, resident = (model.start() for model in models)
    np.testing.assert_allclose(resident.extend_resident(IDS).host(0), plain.extend(IDS), atol=CLOSE)
    found, expected = resident.extend_resident([7, 8], all_positions=True), plain.extend_all([7, 8])
    assert found.shape == expected.shape
    for row in range(2):
        np.testing.assert_allclose(found.host(row), expected[row], atol=CLOSE)
    for every in (False, True):
        found = resident.extend_resident([9, 10], all_positions=every, tree=TREE)
        expected = plain.extend_tree([9, 10], TREE, all_positions=every)
        assert found.shape == expected.shape
        for row in range(len(expected)):
            np.testing.assert_allclose(found.host(row), expected[row], atol=CLOSE)
        for session in (plain, resident):
            session.keep([2, 3])
    assert plain.length == resident.length
    assert plain.forwards == resident.forwards
    np.testing.assert_allclose(resident.extend([4]), plain.extend([4]), atol=CLOSE)


def test_the_first_chain_of_a_tree(models: tuple[Any, Any]) -> None:
    plain, resident = (model.start() for model in models)
    chains = ChainSession(plain, name="plain"), ChainSession(resident, name="resident")
    for every in (True, False):
        expected = chains[0].extend_tree(IDS, TREE, all_positions=every)
        found = chains[1].extend_resident(resident, IDS, TREE, all_positions=every)
        assert found.shape == expected.shape
        for row in range(len(expected)):
            assert found.was_run(row) != np.isnan(expected[row]).any()
            np.testing.assert_allclose(found.host(row), expected[row], atol=CLOSE)
        for chain in chains:
            chain.keep([0, 1])
    assert plain.length == resident.length == 2 * len(IDS) + 4


def test_logits_outlive_later_passes(models: tuple[Any, Any]) -> None:
    session = models[1].start()
    first = session.extend_resident(IDS)
    expected = models[0].start().extend(IDS)
    session.extend_resident([1, 2, 3])
    np.testing.assert_allclose(first.host(0), expected, atol=CLOSE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("drafter", [None, "auto"])
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), Multinomial(0.7, top_k=9, top_p=0.9, min_p=0.05)])
def test_outputs_are_those_of_the_host(models: tuple[Any, Any], sampler: Any, drafter: Any) -> None:
    before = models[1].residence.copied_rows
    for seed in range(3):
        results = []
        for model in models:
            forget()
            results.append(
                generate(model, "the name", GRAMMAR, max_tokens=50, sampler=sampler, drafter=drafter, seed=seed)
            )
        assert_alike(*results, tolerance=CLOSE)
    assert models[1].residence.copied_rows == before


def test_other_numbers(network: Any, tokenizer: Any, tiny_folder: Path) -> None:
    """In bfloat16 many logits are equal; the first is taken; the logits keep the dtype where they are asked."""
    half = transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16)
    pair = from_transformers(half, tokenizer), from_transformers(half, tokenizer, resident=True)
    for sampler in (Greedy(), Multinomial(top_k=3)):
        results = [generate(model, "the", GRAMMAR, max_tokens=50, sampler=sampler, drafter=None) for model in pair]
        assert_alike(*results, tolerance=CLOSE)


def test_load_model_says_it(network: Any, tokenizer: Any) -> None:
    model: Any = load_model((network, tokenizer), resident=True)
    assert model.start().is_resident


@pytest.mark.nightly
@pytest.mark.model
def test_the_embedded_model() -> None:
    """Over 49,152 tokens there is one wait per pass; drafters learn from the top logits alone."""
    models: list[Any] = [load_model(device="cpu", runtime="torch", resident=resident) for resident in (False, True)]
    grammar = json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    )
    for sampler, drafter in ((Greedy(), None), (Greedy(), "auto"), (Multinomial(0.8, top_p=0.9), None)):
        results = []
        before = models[1].residence.launches, models[1].residence.copied_rows
        for model in models:
            forget()
            results.append(
                generate(model, "Who was Ada?", grammar, max_tokens=40, sampler=sampler, drafter=drafter, seed=1)
            )
        assert_alike(*results, tolerance=CLOSE)
        assert models[1].residence.launches - before[0] <= results[1].stats.forwards
        assert models[1].residence.copied_rows == before[1]


def small(tokenizer: Any) -> Any:
    """One layer, for the sake of compilers."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=264,
        eos_token_id=2,
        bos_token_id=1,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        num_hidden_layers=1,
    )
    made = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


NIGHTLY = pytest.mark.nightly
WAYS = [
    pytest.param("eager", None, False, (None,), id="eager, any length from the second on"),
    pytest.param("eager", False, True, (None,), id="eager, each length by itself"),
    pytest.param("aot_eager", True, True, (None,), id="aot_eager, any length"),
    pytest.param("aot_eager", None, True, (None, "auto"), id="aot_eager, and trees", marks=NIGHTLY),
    pytest.param("inductor", None, True, (None, "auto"), id="inductor", marks=NIGHTLY),
    pytest.param("inductor", True, False, (None, "auto"), id="inductor, any length", marks=NIGHTLY),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("compiler", "dynamic", "resident", "drafters"), WAYS)
def test_compiled_models(
    compiler: str, dynamic: bool | None, resident: bool, drafters: tuple[Any, ...], tokenizer: Any
) -> None:
    """Names, attributes and signatures are those of the model; so are the outputs, without drafts and with trees."""
    made = small(tokenizer)
    torch._dynamo.reset()
    plain = from_transformers(made, tokenizer)
    compiled = from_transformers(torch.compile(made, backend=compiler, dynamic=dynamic), tokenizer, resident=resident)
    assert compiled.name == plain.name
    assert repr(compiled) == repr(plain)
    assert (compiled.max_context, compiled.id_limit) == (plain.max_context, plain.id_limit)
    assert compiled.vocabulary.size == plain.vocabulary.size
    for drafter in drafters:
        results = []
        for model in (plain, compiled):
            forget()
            results.append(
                generate(model, "the name", regex("[a-z]{4,5}"), max_tokens=12, drafter=drafter, sampler=Multinomial())
            )
        assert_alike(*results, tolerance=1e-3)
    if compiler == "eager" or "auto" in drafters:
        assert compiled.start().can_branch
    torch._dynamo.reset()


def test_what_a_compiled_model_returns_is_its_own(tokenizer: Any) -> None:
    """CUDA graphs return results in the same memory each time; here a model does that itself."""
    made = small(tokenizer)

    class Reusing(torch.nn.Module):
        """Wraps a model as ``torch.compile`` does."""

        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = made
            self._held: list[Any] = []

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("_orig_mod"), name)

        def forward(self, **inputs: Any) -> Any:
            for tensor in self._held:
                tensor.fill_(torch.nan)
            output = made(**inputs)
            layers = output.past_key_values.layers
            self._held = [output.logits, *(each for layer in layers for each in (layer.keys, layer.values))]
            return output

    plain, reusing = from_transformers(made, tokenizer), from_transformers(Reusing(), tokenizer, resident=True)
    session = reusing.start()
    first = session.extend_resident(IDS)
    reference = session.fork()
    rows = session.extend_all([7, 8])
    session.extend([9])
    expected = plain.start().extend_all([*IDS, 7, 8])
    np.testing.assert_allclose(first.host(0), expected[len(IDS) - 1], atol=CLOSE)
    np.testing.assert_allclose(rows, expected[len(IDS) :], atol=CLOSE)
    np.testing.assert_allclose(reference.extend([7]), expected[len(IDS)], atol=CLOSE)
