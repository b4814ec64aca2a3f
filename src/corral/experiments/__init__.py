"""Experiments as data, and the code that runs, summarises and draws any such file; see docs/experiments.md.

file ──spec──▶ Experiment ──plan──▶ jobs ──runner──▶ OUT/runs ──data──▶ OUT/data/*.csv ──tables, figure──▶ OUT/figures
"""
