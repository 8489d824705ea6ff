"""Which hosts a request may leave to; nothing is sent from here."""
