"""Client sides that send some weights of their model; a whole model that travels does not belong here."""
