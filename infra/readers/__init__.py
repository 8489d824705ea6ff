"""Reads committed state and history for the API, the CLI and the dashboard; writes nothing."""
