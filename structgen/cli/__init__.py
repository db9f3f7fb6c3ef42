"""The command line: ``structgen run | check | match | explain``.

Every command is one module with a ``click`` command; what takes long to import (the engine, models) is imported
inside the functions that need it, so that ``structgen --help`` answers at once.
"""
