"""Every network that drafts, for pictures and for videos, with its folder format and its part beside a target.

Does not belong here: how drafts grow (`specdecode.drafters`) and how a network is trained (`vargen.training`).
"""
