"""Records to values and back, and what is kept of them in memory; decides nothing."""
