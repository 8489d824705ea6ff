"""Moves expiring history into files or S3, and reads it back."""
