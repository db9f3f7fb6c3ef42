"""Servers for tests, and OpenAI's client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from openai import OpenAI
from served_model import VOCABULARY, served

from structgen.models import HashModel, LanguageModel


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers, which end with the test."""
    with ExitStack() as stack:

        def start(model: LanguageModel | None = None, **settings: Any) -> str:
            return stack.enter_context(served(model or HashModel(VOCABULARY, seed=1, max_context=2000), **settings))

        yield start


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server for all tests of a module."""
    with served(HashModel(VOCABULARY, seed=1, max_context=2000)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    """OpenAI's client."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made
