"""The files that deploy Surefoot."""
