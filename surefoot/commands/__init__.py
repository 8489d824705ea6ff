"""The commands. Each module has the options, help and code of one command, or of one group."""
