"""OpenAI's client for JavaScript: what it parses is of the zod schema, and its loop calls tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from asked import MESSAGES, MODEL, MOST

MODULES = Path(sys.prefix) / "js"
"""Where ``make clients`` installs modules of Node."""
SCRIPT = """
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { base_url, model, messages, most } = %s;
const client = new OpenAI({ baseURL: base_url, apiKey: "none", maxRetries: 0 });
const City = z.object({ name: z.string(), is_capital: z.boolean() });
const asked = { model, messages, max_completion_tokens: most };
const response_format = zodResponseFormat(City, "city");
const found = {};

found.parsed = (await client.chat.completions.parse({ ...asked, response_format })).choices[0].message.parsed;

const stream = client.chat.completions.stream({ ...asked, response_format });
let text = "";
stream.on("content", (delta) => (text += delta));
found.streamed = (await stream.finalChatCompletion()).choices[0].message.parsed;
found.joined = JSON.parse(text);

const format = zodTextFormat(City, "city");
const response = await client.responses.parse({ model, input: messages, text: { format }, max_output_tokens: most });
found.response = response.output_parsed;

const seen = [];
const population = zodFunction({
  name: "population",
  parameters: z.object({ city: z.string().max(20) }),
  function: (given) => (seen.push(given), "2 million"),
});
const tool_choice = { type: "function", function: { name: "population" } };
const loop = client.chat.completions.runTools({ ...asked, tools: [population], tool_choice });
await loop.finalMessage();
found.seen = seen;
found.result = await loop.finalFunctionToolCallResult();

console.log(JSON.stringify(found));
"""
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "is_capital": {"type": "boolean"}},
    "required": ["name", "is_capital"],
    "additionalProperties": False,
}


def run_node(script: str) -> str:
    """What a module of JavaScript prints; the test is skipped where Node or its modules are missing."""
    node = shutil.which("node")
    if node is None or not (MODULES / "node_modules").is_dir():
        pytest.skip("there is no Node, or none of the modules that `make clients` installs where npm is there")
    command = [node, "--input-type=module"]
    done = subprocess.run(command, input=script, cwd=MODULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_parses_streams_and_calls(base_url: str) -> None:
    """One process for all, since it takes a while to start."""
    asked = {"base_url": base_url, "model": MODEL, "messages": MESSAGES, "most": MOST}
    found = json.loads(run_node(SCRIPT % json.dumps(asked)))
    for name in ("parsed", "streamed", "joined", "response"):
        jsonschema.validate(found[name], CITY)
    assert found["joined"] == found["streamed"]
    (given,) = found["seen"]
    assert isinstance(given["city"], str)
    assert found["result"] == "2 million"
