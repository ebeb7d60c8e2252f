"""The command, called in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from simulations.cli.command import main


class Done(NamedTuple):
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether it was refused: exit status 2 and one line on standard error."""
        return self.status == 2 and self.err.startswith("hetfl: ") and self.err.count("\n") == 1


@pytest.fixture
def hetfl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Call the command in this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["hetfl", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *capfd.readouterr())

    return call
