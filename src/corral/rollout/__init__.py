"""From an environment and a policy to a `Batch` of whole episodes, on the device or on the host.

The number of episodes of an iteration is fixed before it begins, from the episode length of the iteration before, and every
episode is run to its end: so means over episodes are unbiased even when episodes end early for reasons that correlate with
cost.
"""
