"""The ``hetfl`` command, a module for each thing that people do with it; the doing itself lies outside of here."""
