"""Examines a declared agent without running it: lint, graph, description."""
