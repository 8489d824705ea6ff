"""Who may send which request to the gateway. Nothing here knows where accounts are kept."""
