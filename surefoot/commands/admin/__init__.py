"""What an operator looks after besides runs: topics, schedules, webhooks, dead letters."""
