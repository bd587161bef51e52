"""Decoding methods, one file each: settings, sizes, players, the space for a tuner. Those for videos lie in `video/`.

A method knows no model: it asks `base.Components`, or `video.base.VideoComponents`. `catalogue.py` lists all methods
without importing torch.
"""
