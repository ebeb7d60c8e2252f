"""Server sides of a small model that travels beside an own one; an own model never leaves its client here."""
