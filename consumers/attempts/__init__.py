"""Runs attempts of steps beside the log's loop and reports their outcome; commits nothing."""
