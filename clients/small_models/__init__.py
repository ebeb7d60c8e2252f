"""Client sides with a small model that travels beside the own one; the own one never leaves the client here."""
