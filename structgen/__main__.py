"""``python -m structgen``: the command line without its script."""

import sys

from structgen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
