"""The HTTP API: routes, lists, feeds, OpenAPI; what it asks of a run goes through commands/."""
