"""Nodes of vargen for ComfyUI: put this folder, or a link to it, into `ComfyUI/custom_nodes`."""

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
