"""What went wrong with a client."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True)
class Failure:
    """What went wrong with one client in one round; `client_id` is ``partition`` in the files of a run folder.

    It is -1 where the client has not said which it is.
    """

    client_id: Annotated[int, Field(ge=-1, lt=10**9, alias="partition")]
    stage: str
    reason: str
    node: Annotated[int, Field(ge=0, lt=2**64)]
