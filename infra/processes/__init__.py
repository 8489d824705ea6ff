"""One module a kind of process: wiring, from start to drain."""
