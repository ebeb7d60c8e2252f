"""What ``hetfl doctor`` examines before a node joins: this machine, its files, and the server as it is seen from here.

A check belongs here if it changes nothing: it neither joins a federation nor leaves a file behind.
"""
