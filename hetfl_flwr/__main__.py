"""The ``hetfl`` command, also ``python -m hetfl_flwr``: starts only with this project's own packages."""

import sys
from importlib import import_module

from hetfl_flwr.common.errors import ConfigError
from hetfl_flwr.common.packages import own_package, working_directory_last


def main() -> None:
    """Run the command, or end with one line and exit status 2 where another package hides one of this project's."""
    working_directory_last()
    try:
        for name in ("simulations", "strategies", "clients"):
            own_package(name)
    except ConfigError as error:
        sys.stderr.write(f"hetfl: {error}\n")
        sys.exit(2)
    import_module("simulations.cli.command").main()


if __name__ == "__main__":
    main()
