"""The command line: one module for each group of commands, none of which does more than call the package."""

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    from .app import main as run

    run()
