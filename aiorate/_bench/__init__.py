"""The benchmarks: aiorate beside its peers and beside the least that the interpreter allows. Run by ``python -m aiorate bench``."""
