"""The wire contract: what the bytes of a record mean. Imports no other room of Surefoot."""
