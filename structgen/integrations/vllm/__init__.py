"""structgen as a grammar backend of vLLM: a general plug-in, which an unchanged vLLM finds by its entry point.

Written against vLLM 0.32.  ``plugin.register`` is what vLLM calls in each of its processes.
"""
