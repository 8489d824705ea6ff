"""Accounts and the audit trail on the log."""
