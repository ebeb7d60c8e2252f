"""From what a data set's columns hold to arrays: images, texts, tables, labels. Nothing here knows of clients."""
