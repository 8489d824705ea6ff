"""The wire contract: what the bytes of a record mean. Imports nothing of Surefoot's other rooms."""
