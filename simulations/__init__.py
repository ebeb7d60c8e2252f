"""All that people do with federations: the ``hetfl`` command, the local engine, studies of many runs, reports, trained
models, deployment, and what authors of methods and of benchmarks need. No method belongs here.
"""
