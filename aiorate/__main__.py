"""``python -m aiorate``."""

from __future__ import annotations

from aiorate._tools.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
