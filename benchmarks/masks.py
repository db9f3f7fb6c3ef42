"""Masks for real JSON Schemas, side by side with the peers: ``structgen bench masks`` from a checkout.

Usage: python benchmarks/masks.py [OPTIONS], those of ``structgen bench masks --help``.
"""

from __future__ import annotations

import sys

from structgen.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", "masks", *sys.argv[1:]]))
