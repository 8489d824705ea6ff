"""Reads queues and drop folders, and starts runs from them."""
