"""The ``hetfl`` command, also ``python -m hetfl_flwr``: starts only with this project's own packages."""

import sys
from importlib import import_module

from hetfl_flwr.common.packages import lacking, own_package, working_directory_last
from hetfl_flwr.errors import INTERRUPTED, ConfigError


def main() -> None:
    """Run the command, or end with one line and exit status 2 where a package is hidden or lacks."""
    working_directory_last()
    try:
        for name in ("simulations", "strategies", "clients"):
            own_package(name)
        command = import_module("simulations.cli.command")
    except KeyboardInterrupt:
        sys.stderr.write(f"hetfl: {INTERRUPTED}\n")
        sys.exit(1)
    except (ConfigError, ModuleNotFoundError) as error:
        if (line := lacking(error) or error) is error and not isinstance(error, ConfigError):
            raise
        sys.stderr.write(f"hetfl: {line}\n")
        sys.exit(2)
    command.main()


if __name__ == "__main__":
    main()
