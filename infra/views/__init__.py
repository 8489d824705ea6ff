"""The views service: runs folded into tables, served over HTTP."""
