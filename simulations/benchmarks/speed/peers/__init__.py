"""The local engine against other frameworks' loops: their own code, from a clone of theirs."""
