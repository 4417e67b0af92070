"""``python tests/benchmarks``, in a clone or an unpacked source archive. Measures the aiorate that lies beside it."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[0:1] = [str(tests.parent), str(tests)]  # instead of this folder
    from benchmarks.command import main

    sys.exit(main())
