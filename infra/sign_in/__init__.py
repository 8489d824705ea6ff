"""What a process proves who it is with: renewed files, and tokens; no settings, no log."""
