"""The log: the broker, and the contract of every log."""
