"""``hetfl new``: writes a working algorithm, a copy of `simulations.authoring.skeleton` under a new name."""

import re
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

import simulations.authoring.skeleton as skeleton
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import names

SKELETON = Path(*skeleton.__path__)

OWN = ("hetfl_flwr", "strategies", "clients", "simulations")
"""Names of this project's packages."""


def write_algorithm(name: str, here: Path) -> Path:
    """Write a package with both sides of an algorithm and their test below a folder, and return the package's folder.

    ``my_pkg.my_method`` makes ``my_pkg/my_method/``, and ``my_pkg/__init__.py`` if it is missing.
    """
    _check(name, here)
    *outer, last = name.split(".")
    folder = here.joinpath(*outer, last)
    title = "".join(part[:1].upper() + part[1:] for part in last.split("_"))
    try:
        folder.mkdir(parents=True)
        for depth in range(len(outer)):
            here.joinpath(*outer[: depth + 1], "__init__.py").touch()
        for path in SKELETON.glob("*.py"):
            text = path.read_text().replace("simulations.authoring.skeleton", name).replace("Skeleton", title)
            (folder / path.name.replace("skeleton", last)).write_text(text)
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} already exists: choose another name") from None
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None
    return folder


def _check(name: str, here: Path) -> None:
    """Raise ConfigError for a name that Python cannot import, or that is already in use."""
    parts = name.split(".")
    if not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", part) and not iskeyword(part) for part in parts):
        raise ConfigError(
            f"'{name}' is not a name for a Python package: choose one such as my_method or my_pkg.my_method"
        )
    top = parts[0]
    if name in names() or top in OWN:
        raise ConfigError(f"'{name}' is used by this project: choose another name, such as my_{parts[-1]}")
    spec = find_spec(top)
    if spec is None:
        return
    places = spec.submodule_search_locations or [spec.origin or "Python itself"]
    if str(here / top) not in places:
        raise ConfigError(f"'{top}' is already a Python module ({next(iter(places))}): choose another name")
