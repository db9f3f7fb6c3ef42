"""Programs on models on servers: vLLM, SGLang, llama-server and OpenAI.

The constraint goes to the server in the notation that it knows, and all that comes back is checked here.
"""

from structgen.integrations.openai_server.client import OpenAIServer, remote
from structgen.integrations.openai_server.dialects import Dialect, Kind, Translation, gbnf_of, translation_of

__all__ = ["Dialect", "Kind", "OpenAIServer", "Translation", "gbnf_of", "remote", "translation_of"]
