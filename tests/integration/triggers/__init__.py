"""Runs started by topics, queues and files."""
