"""Commands on runs and schedules, and replay; transport-free."""
