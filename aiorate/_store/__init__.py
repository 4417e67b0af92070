"""One limit for several processes, over Redis or Valkey, or over a file."""
