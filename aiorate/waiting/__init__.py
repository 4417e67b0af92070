"""The waiting requests of a limiter: their line, and how they are woken. Nothing here knows how a rate is computed."""
