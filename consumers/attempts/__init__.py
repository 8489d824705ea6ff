"""Runs attempts of steps beside the log's loop and says what came of them; commits nothing."""
