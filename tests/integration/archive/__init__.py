"""The archive and replay."""
