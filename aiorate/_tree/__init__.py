"""The tree of limits: their lines, and how a request is decided. Nothing here knows how a rate is computed."""
