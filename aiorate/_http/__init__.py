"""What HTTP clients and servers say, and how requests are limited."""
