"""The trust-region subproblem of CPO as small pure modules: they import JAX and nothing of Corral's policies.

    maximise gᵀx   subject to   cᵢ + bᵢᵀx ≤ 0 (i = 1..m),   ½ xᵀHx ≤ δ

`fisher` multiplies by H, `cg` solves with it, `dual` finds the optimal step from q, r, S, c, δ alone,
`line_search` makes the step safe for the functions that the subproblem only linearises.
"""
