"""aiorate next to its peers and next to something bare: one table. ``python tests/benchmarks`` makes it."""
