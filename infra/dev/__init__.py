"""`surefoot dev`: a stack that reloads with its author's files."""
