"""The command line: a demo, and a simulation of limits."""
