"""Names of topics, agents, runs and partitions; knows nothing of what a run does."""
