"""What a step works with and returns: context, journal, results; no I/O of its own."""
