"""Scenes as data: camera, solids, textures, renderer, and videos of them."""
