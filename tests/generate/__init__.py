"""Writes the generated pages of docs/; tests hold that they are up to date."""
