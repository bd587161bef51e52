"""Training: the loop that all trainers share, and drafters for any model, from any data.

`run.py` is the loop. Nothing here is needed to generate pictures.
"""
