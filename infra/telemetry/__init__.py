"""Exports metrics and traces; their names are in state/telemetry."""
