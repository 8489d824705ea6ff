"""Commands for authors of agents, on their own machine or in CI."""
