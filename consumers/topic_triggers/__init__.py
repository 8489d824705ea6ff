"""Starts runs from records of other applications' topics, in one transaction with the offset."""
