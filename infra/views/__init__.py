"""The views service: runs folded into tables, and their HTTP interface."""
