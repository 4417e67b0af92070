"""The benchmarks: aiorate beside its peers and beside the least cost that the interpreter allows. ``python -m aiorate bench`` runs them."""
