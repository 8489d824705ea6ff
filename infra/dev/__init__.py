"""`surefoot dev`: a stack that reloads when the author's files change."""
