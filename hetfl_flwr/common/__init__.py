"""What all modules may use: files, notices, packages, versions, arithmetic, Flower. Nothing here learns."""
