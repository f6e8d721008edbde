"""`python -m capplan` is `capplan`."""

import sys

from capplan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
