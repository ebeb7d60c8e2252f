"""How much the server sets aside for what nodes say of themselves: their data, and so the models that fit it."""

from math import prod

from hetfl_flwr.errors import FederationError

MAX_NUMBERS = 2**28
"""Numbers in a model that the server builds, and in one array that it makes, at most: 1 GiB as float32."""

MAX_INPUTS = 2**24
"""Numbers in one input of a model that the server builds, at most: four images of 2048 x 2048 pixels."""


def check_size(what: str, *shape: int) -> None:
    """Refuse an array before the server sets memory aside for it.

    Parameters
    ----------
    what : str
        What it is, and of whom.
    *shape : int
        Its shape, as nodes have registered it.

    Raises
    ------
    FederationError
        It would have more than `MAX_NUMBERS` numbers.
    """
    if prod(shape) > MAX_NUMBERS:
        raise FederationError(
            f"{what}: {' x '.join(map(str, shape))} are more than the {MAX_NUMBERS} numbers that the server keeps at "
            "most in one array"
        )
