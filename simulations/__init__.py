"""The local engine, the ``hetfl`` command, and the same from Python: `run`, `load`, `sweep`, `compare`, `export`.

Examples
--------
>>> from simulations import run
>>> result = run("fedhe", clients=2, rounds=1, out=getfixture("tmp_path") / "run", progress=False)
>>> result.summary["rounds"], result.folder.name
(1, 'run')
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulations.api import Result as Result
    from simulations.api import compare as compare
    from simulations.api import export as export
    from simulations.api import load as load
    from simulations.api import run as run
    from simulations.api import sweep as sweep

_LAZY = ("Result", "compare", "export", "load", "run", "sweep")


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: ``hetfl --help`` needs none of it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("simulations.api"), name)
