"""Training: the loop that all trainers share, and drafters, on any model and any data.

`run.py` is the loop; what is trained on the world alone is in `scenes.training`. Nothing here
is needed to generate pictures.
"""
