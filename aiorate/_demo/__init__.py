"""``python -m aiorate demo``: real requests to a real server, without and with a limiter, and the server's view of them."""
