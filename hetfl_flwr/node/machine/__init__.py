"""The machine that a client runs on: device, threads, memory allocation, and what training costs there.

Nothing here knows a client, its data or its model.
"""
