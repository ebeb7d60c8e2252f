"""The papers' tables and figures: a recipe each, run over seeds, the paper's figures beside ours."""
