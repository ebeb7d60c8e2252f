"""Limits on the memory that the server allocates for what nodes report: their data, and models that fit them."""

from math import prod

from hetfl_flwr.errors import FederationError

MAX_NUMBERS = 2**28
"""Maximum number of values in a model or an array that the server creates: 1 GiB as float32."""

MAX_INPUTS = 2**24
"""Maximum number of values in one input of a model that the server builds: four images of 2048 x 2048 pixels."""


def check_size(what: str, *shape: int) -> None:
    """Check the size of an array before the server allocates memory for it.

    Parameters
    ----------
    what : str
        What the array is and which client it belongs to, for the error message.
    *shape : int
        The shape of the array, as registered by nodes.

    Raises
    ------
    FederationError
        If the array would have more than `MAX_NUMBERS` numbers.
    """
    if prod(shape) > MAX_NUMBERS:
        raise FederationError(
            f"{what}: {' x '.join(map(str, shape))} are more than {MAX_NUMBERS} numbers, the most that the server "
            "keeps in one array"
        )
