"""Client sides that show public samples, or predict on them; here no network leaves a client."""
