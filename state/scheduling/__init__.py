"""When a schedule ticks, and the book that records it. The clock is an argument."""
