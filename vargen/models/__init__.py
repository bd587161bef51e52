"""Models, one folder a family, and what several families share.

Classes are imported from their own modules: this file stays empty of imports, so that reading a configuration does not
load diffusers.
"""
