"""Everything users do with federations: command, engine, studies, reports, trained models, deployment, authoring.

No method belongs here.
"""
