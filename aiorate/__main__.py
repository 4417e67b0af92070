"""``python -m aiorate``."""

from __future__ import annotations

import sys

from aiorate._tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
