"""A working algorithm to begin with: a copy of `simulations.authoring.skeleton` under a name of one's own."""

import re
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

import simulations.authoring.skeleton as skeleton
from hetfl_flwr.errors import ConfigError
from hetfl_flwr.methods import names

SKELETON = Path(*skeleton.__path__)

OWN = ("hetfl_flwr", "strategies", "clients", "simulations")
"""This project's packages."""


def write_algorithm(name: str, here: Path) -> Path:
    """Write a package with both sides of an algorithm and their test.

    Parameters
    ----------
    name : str
        What `hetfl run` is to call it: ``my_method`` makes ``my_method/``, ``my_pkg.my_method`` makes
        ``my_pkg/my_method/`` and whatever ``my_pkg`` lacks to be a package.
    here : Path
        The folder from which it is run.

    Returns
    -------
    Path
        The algorithm's folder.

    Raises
    ------
    ConfigError
        The name cannot be that of a package, or is taken; the folder is there already, or cannot be written.
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
        raise ConfigError(f"{error.filename} exists already: take another name") from None
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}") from None
    return folder


def _check(name: str, here: Path) -> None:
    """Refuse a name that Python cannot import, or that already means something else."""
    parts = name.split(".")
    if not all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", part) and not iskeyword(part) for part in parts):
        raise ConfigError(f"'{name}' is no name of a Python package: take one such as my_method or my_pkg.my_method")
    top = parts[0]
    if name in names() or top in OWN:
        raise ConfigError(f"'{name}' is taken by this project: take another name, such as my_{parts[-1]}")
    spec = find_spec(top)
    if spec is None:
        return
    places = spec.submodule_search_locations or [spec.origin or "Python itself"]
    if str(here / top) not in places:
        raise ConfigError(f"'{top}' is a Python module already ({next(iter(places))}): take another name")
