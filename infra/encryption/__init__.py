"""Encryption of payloads: keys, and wrappers of the log's ports and of the store of blobs.

The engine sees neither keys nor ciphertext."""
