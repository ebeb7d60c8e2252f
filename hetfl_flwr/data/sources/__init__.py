"""Where a data set comes from: files, folders, the hub, Python objects, what is bundled. No column is decoded here."""
