"""Finite CMDPs, where everything is exact: values, optima, the paper's bounds and CPO itself.

`cmdp` evaluates policies, `optimum` solves by linear programming, `bounds` has one function per result of the
paper and `older_bounds` those it improves on, `survey` checks them all; `cpo` and `guaranteed` learn.
"""
