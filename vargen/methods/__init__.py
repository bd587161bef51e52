"""Decoding methods for pictures, one file each: settings, sizes, players, what a tuner may try.

A method knows no model: what it may ask one for is `base.Components`. `catalogue.py` lists them without importing
torch.
"""
