"""What a limiter needs of an event loop, for each kind of loop."""
