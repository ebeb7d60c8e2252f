"""The ``hetfl`` command, also ``python -m hetfl_flwr``; it stops if a package of this project is shadowed."""

import sys
from importlib import import_module

from hetfl_flwr.common.packages import lacking, own_package, working_directory_last
from hetfl_flwr.errors import INTERRUPTED, ConfigError


def main() -> None:
    """Run the command; exit with one line and status 2 if a package is shadowed or missing."""
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
