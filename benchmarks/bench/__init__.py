"""The bench measures every part of training beside the floor that this machine sets, in one run.

`clock` takes times in turns. `floors` describes matrix products and measures what they and a copy cost here; `work` counts
those of an update. `raw` drives engines without Corral. Each part of `make bench` has a module; `report` makes tables of
the results and `figure` pictures.
"""
