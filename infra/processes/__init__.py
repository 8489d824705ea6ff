"""One module per kind of process: wiring, from start to drain."""
