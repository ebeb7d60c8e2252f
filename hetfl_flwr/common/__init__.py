"""What every module may use: errors, random numbers, files, texts, notices, packages, Flower. Nothing here learns."""
