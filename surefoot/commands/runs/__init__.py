"""Show, start and control runs."""
