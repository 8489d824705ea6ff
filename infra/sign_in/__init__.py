"""What a process proves who it is with, in files that somebody else renews; no settings, no log."""
