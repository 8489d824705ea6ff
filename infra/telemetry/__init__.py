"""Exports metrics and traces; what they are called is state/telemetry."""
