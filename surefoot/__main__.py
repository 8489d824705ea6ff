"""`python -m surefoot` is the console script."""

from surefoot.cli import app

if __name__ == "__main__":
    app()
