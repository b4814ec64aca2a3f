"""Statements about a policy that hold with a stated probability: bounds from finite samples, verdicts, certificate files."""
