"""What a watcher of events receives, and where it continues from; reads no log."""
