"""Server sides whose clients send some weights of their model; a whole model that travels does not belong here."""
