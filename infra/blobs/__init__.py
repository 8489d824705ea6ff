"""Where large payloads are kept, and how unused ones are removed."""
