"""What every process has: settings, clock, loading of agents, logging, supervision."""
