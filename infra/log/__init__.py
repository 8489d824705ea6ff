"""What a process needs of a log, whichever it is; no implementation."""
