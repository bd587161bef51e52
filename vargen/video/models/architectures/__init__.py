"""Where each architecture of transformers keeps what decoding about videos needs: one file an architecture.

Belongs here: where a model's decoder layers, vision features, positions and visual tokens are, and what of a video its
processor can be told. Does not belong here: requests (`request.py`), running a model (`target.py`).
Nothing here imports torch or transformers before a model is there. `catalogue.py` has the list.
"""
