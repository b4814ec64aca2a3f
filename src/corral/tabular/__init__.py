"""Finite CMDPs, where everything is exact: values, optima, the paper's bounds and CPO itself."""
