"""Training of the models that vargen ships: the image tokenizer and the text-to-image transformer.

`run.py` is the loop that all trainers share; every other module adds one trained thing or one part of it. Nothing here
is needed to generate pictures.
"""
