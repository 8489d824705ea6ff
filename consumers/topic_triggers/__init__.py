"""Starts runs from records of other people's topics, each with its offset in one transaction."""
