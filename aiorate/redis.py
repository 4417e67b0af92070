"""One limit for many processes, through Redis or Valkey.

>>> limiter = RedisLimiter("redis://127.0.0.1:6379/0", "search", "100/s")
>>> await limiter.acquire()       # or: async with limiter: ...
"""

from aiorate._store.budget import RedisBudget
from aiorate._store.limiter import RedisLimiter

__all__ = ["RedisBudget", "RedisLimiter"]
