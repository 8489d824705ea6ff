"""Which of the queued runs begins next; no I/O."""
