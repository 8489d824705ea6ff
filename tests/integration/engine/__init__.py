"""Runs on a real broker: steps, waits, takeovers, versions."""
