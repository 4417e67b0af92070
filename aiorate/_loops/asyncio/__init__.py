"""asyncio's event loops, uvloop's included: the view of a loop, its port, and the two drivers."""
