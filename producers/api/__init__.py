"""The HTTP API: routes, lists, feeds, OpenAPI. Commands to runs go through commands/."""
