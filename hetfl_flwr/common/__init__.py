"""What every module may use: random numbers, files, texts, notices, packages, versions. Nothing here learns."""
