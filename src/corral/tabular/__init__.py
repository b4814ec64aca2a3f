"""Finite constrained Markov decision processes (CMDPs), where values, optima, the paper's bounds and CPO are exact.

`cmdp` evaluates policies, `optimum` finds the best one by linear programming, `bounds` has one function per result of
the paper, `older_bounds` has the results that the paper improves on, and `survey` checks all of them on random CMDPs.
`cpo` and `guaranteed` learn policies; `sampled` takes CPO's steps from sampled episodes and computes their exact effect.
The paper is "Constrained Policy Optimization", Achiam et al. 2017.
"""
