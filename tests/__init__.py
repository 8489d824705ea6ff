"""The test suite; shared helpers live in conftest.py and support/."""
