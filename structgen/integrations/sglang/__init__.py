"""The grammar backend of SGLang: ``python -m sglang.launch_server --model-path M --grammar-backend structgen``.

SGLang finds it by the entry point ``sglang.srt.plugins`` of this package, and calls ``plugin.register`` in each of its
processes.  Nothing of it is imported before the backend is chosen.
"""
