"""``python -m torchcoll`` is the console command ``torchcoll``."""

from __future__ import annotations

import sys

from torchcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
