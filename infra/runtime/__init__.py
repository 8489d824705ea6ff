"""What every process needs: settings, clock, loading of agents, logging, supervision."""
