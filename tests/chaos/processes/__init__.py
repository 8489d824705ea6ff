"""The processes that chaos tests start and kill."""
