"""What must be read whether Flower's log is shown or not."""

import sys


def warn(text: str) -> None:
    """Say something in a line on standard error, as the ``hetfl`` command does."""
    print(f"hetfl: {text}", file=sys.stderr)
