"""Stores of large payloads, and the sweep of unused ones."""
