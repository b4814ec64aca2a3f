"""What is fast and what is not: every part of training against the floor that this machine sets, in one run.

`clock` takes times in turns, `floors` counts matrix products and measures what they and a copy cost here, `raw` drives
engines without us; one module per part of `corral bench`; `report` makes tables and `figure` pictures from the results.
"""
