"""The command line: one module for each group of commands, none of which does more than call the package."""

from .app import main

__all__ = ["main"]
