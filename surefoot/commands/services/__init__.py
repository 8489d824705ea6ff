"""The long-running parts of a system."""
