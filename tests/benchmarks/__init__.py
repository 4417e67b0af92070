"""The benchmarks: aiorate beside its peers and beside the least cost that the interpreter allows. ``python tests/benchmarks`` runs them."""
