"""The command line. Commands only parse, call and print; the work is in the other packages."""

from lagwise.cli.main import main

__all__ = ["main"]
