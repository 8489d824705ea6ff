"""When a schedule ticks, and the book that remembers it; the clock is an argument."""
