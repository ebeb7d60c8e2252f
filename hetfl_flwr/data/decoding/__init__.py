"""From a data set's columns to arrays: images, texts, tables, series, labels. Nothing here knows of clients."""
