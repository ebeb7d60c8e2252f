"""The ``hetfl`` command, also ``python -m hetfl_flwr``; it stops if a package of this project is shadowed."""

import sys
from importlib import import_module
from types import ModuleType


def main() -> None:
    """Run the command; exit with one line and status 2 if a package is shadowed or missing."""
    try:
        command = _command()
    except KeyboardInterrupt:  # nothing has started yet
        sys.stderr.write("hetfl: interrupted\n")
        sys.exit(1)
    command.main()


def _command() -> ModuleType:
    """Import the command; imports take a second in which Ctrl-C may be pressed."""
    from hetfl_flwr.common.packages import lacking, own_package, working_directory_last
    from hetfl_flwr.errors import ConfigError

    working_directory_last()
    try:
        for name in ("simulations", "strategies", "clients"):
            own_package(name)
        return import_module("simulations.cli.command")
    except (ConfigError, ModuleNotFoundError) as error:
        if (line := lacking(error) or error) is error and not isinstance(error, ConfigError):
            raise
        sys.stderr.write(f"hetfl: {line}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
