"""``python -m statestore`` is the command ``statestore``."""

import sys

from statestore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
