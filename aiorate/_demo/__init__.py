"""``python -m aiorate demo``: real requests to a real server, without and with a limiter, and what the server saw of it."""
