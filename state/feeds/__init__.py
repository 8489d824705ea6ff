"""What a watcher of events gets, and where it goes on from; reads no log."""
