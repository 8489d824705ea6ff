"""Administration besides runs: topics, schedules, webhooks, dead letters."""
