"""What the commands do; surefoot.cli says how they are called."""
