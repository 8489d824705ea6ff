"""The documents say what is so, and their code runs."""
