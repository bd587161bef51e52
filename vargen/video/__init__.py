"""Answers about videos: methods, models, drafters, pipelines, training and jobs of the half for Video-LLMs.

The half for pictures never imports this one: the catalogue of methods, the commands and the page open it by name.
"""
