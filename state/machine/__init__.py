"""The pure run state machine: (state, one input) -> decision; no I/O, no clock, no encoding."""
