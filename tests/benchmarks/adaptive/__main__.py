"""``python tests/benchmarks/adaptive``: the models of servers by themselves, with parameters of one's choice."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[2]
    sys.path[0:1] = [str(tests.parent), str(tests)]  # instead of this folder
    from benchmarks.adaptive.table import main

    logging.getLogger("aiorate").setLevel(logging.ERROR)  # each pause is logged
    sys.exit(main())
