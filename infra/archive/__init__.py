"""Moves expired history into files or S3, and reads it back."""
