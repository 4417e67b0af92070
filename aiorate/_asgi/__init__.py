"""Limits of ASGI applications."""
