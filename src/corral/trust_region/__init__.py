"""The trust-region subproblem of CPO, equation (11) of the paper, as pure functions that know nothing of policies.

    maximise gᵀx   subject to   cᵢ + bᵢᵀx ≤ 0 (i = 1..m),   ½ xᵀHx ≤ δ

`fisher` multiplies by H, `cg` solves with H, `subspace` forms the numbers q, r, S from these solutions, `dual` finds the
optimal step from q, r, S, c, δ alone, and `line_search` shortens it until the functions keep what their linearisations did.
"""
