"""The waiting room of a limiter: who waits, until when, and how they are woken. Nothing here knows how a rate is computed."""
