"""The commands: a module has the options, the help and the doing of one, or of one group."""
