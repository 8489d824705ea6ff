"""Which hosts may send to us, and where requests may go; sends nothing itself."""
