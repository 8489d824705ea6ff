"""What the author of an agent types, on their own machine or in CI."""
