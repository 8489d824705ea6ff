"""The run state machine: state and one input in, a decision out; no I/O, no clock, no encoding."""
