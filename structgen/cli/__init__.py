"""The command line: ``structgen --help`` lists the commands.

Modules that take long to import (the engine, models) are imported inside the functions that need them, so that
``structgen --help`` answers at once.
"""
