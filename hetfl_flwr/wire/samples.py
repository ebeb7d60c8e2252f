"""Public samples as payloads: as they are stored; whoever receives them prepares them as it prepares its own."""

from hetfl_flwr.data import DataSpec
from hetfl_flwr.wire.spec import ArraySpec, Dim, PayloadSpec


def public_samples(rows: int | Dim, spec: DataSpec, dtype: str, *, labelled: bool) -> PayloadSpec:
    """Declare public samples as they are stored, (N, *shape), and with `labelled` their labels (N,)."""
    inputs = stored("inputs", rows, spec, dtype)
    labels = ArraySpec("labels", (rows,), "int64", minimum=0, maximum=spec.classes - 1)
    return PayloadSpec((inputs, labels) if labelled else (inputs,))


def stored(name: str, rows: int | Dim, spec: DataSpec, dtype: str) -> ArraySpec:
    """Declare rows as they are stored, without labels: (R, *shape)."""
    tokens = (0, spec.vocabulary - 1) if spec.is_text else (None, None)
    return ArraySpec(name, (rows, *spec.shape), dtype, minimum=tokens[0], maximum=tokens[1])
