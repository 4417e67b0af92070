"""What limiters need of event loops, for each family of them."""
