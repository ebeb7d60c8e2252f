"""From what a data set's columns hold to arrays: images, texts, tables, series, labels. Nothing here knows of clients."""
