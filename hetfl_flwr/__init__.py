"""Ground floor of hetfl: what every algorithm uses, and the two Flower entry points. Knows no algorithm by name."""
