"""Video-LLMs of the scene world: their processors, models, methods and the account of an answer.

Belongs here: what knows about videos, words and configurations. The decoding itself is `specdecode`'s.
"""
