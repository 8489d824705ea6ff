"""Real processes on a real broker, killed and cut off; judged by tests/checker."""
