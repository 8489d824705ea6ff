"""Looks at a declared agent without running it: lint, graph, description."""
