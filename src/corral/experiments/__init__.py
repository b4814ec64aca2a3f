"""Experiments as files, and the code that runs, summarises and draws them; see docs/experiments.md.

file ──spec──▶ Experiment ──plan──▶ jobs ──runner──▶ OUT/runs ──data──▶ OUT/data/*.csv ──tables, figure──▶ OUT/figures
`pipeline` does all of it.
"""
