"""Accounts, their tokens, and the audit trail, as values and as records. No I/O."""
