"""The families that are described, and which of them a config.json belongs to.

Belongs here: the list, recognition, and families that are refused by name. Does not belong here: descriptions, and
files. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vargen.base.errors import UserError, did_you_mean
from vargen.models.token_images.anole import ANOLE
from vargen.models.token_images.description import TokenImageFamily
from vargen.models.token_images.emu3_5 import EMU3_5
from vargen.models.token_images.liquid import LIQUID
from vargen.models.token_images.lumina_mgpt import LUMINA_MGPT
from vargen.models.token_images.lumina_mgpt_2 import LUMINA_MGPT_2
from vargen.models.token_images.simplear import SIMPLEAR

TOKEN_IMAGE_FAMILIES = {family.name: family for family in (EMU3_5, LUMINA_MGPT, LUMINA_MGPT_2, ANOLE, SIMPLEAR, LIQUID)}
"""The families by name. Emu3 has a pipeline of its own, which reads its classes of transformers."""

FAMILY_KEY = "vargen_family"
"""The entry of config.json that names the family, in folders that vargen wrote; weights there are as the class of
transformers stores them."""

_REFUSED = {
    "x-omni": "X-Omni cannot be drawn with: its decoder acts otherwise on image tokens, in code that only its "
    "repository has, and its pixels come from a diffusion model of 12 billion weights"
}
"""The families by `model_type`."""


def find_family(
    family: TokenImageFamily | str | None, config: Mapping[str, Any], place: object = "model"
) -> TokenImageFamily:
    """A family that a user named, else the one that a config.json belongs to.

    Args:
        family: a description, a name, or None.
        config: the content of config.json.
        place: where it lies, for errors.

    Raises:
        UserError: an unknown name, a family that is refused, or a configuration of none or of several.
    """
    if isinstance(family, TokenImageFamily):
        return family
    if family is not None:
        if family not in TOKEN_IMAGE_FAMILIES:
            known, close = ", ".join(TOKEN_IMAGE_FAMILIES), did_you_mean(family, TOKEN_IMAGE_FAMILIES)
            raise UserError(f"family must be one of {known}, got {family!r}{close}")
        return TOKEN_IMAGE_FAMILIES[family]
    check_not_refused(config, place)
    found = recognised(config)
    if len(found) == 1:
        return found[0]
    if found:
        names = " or ".join(each.name for each in found)
        raise UserError(f"family must be named, because config.json of {place} fits several: {names}")
    raise UserError(
        f"{place} holds a model of type {config.get('model_type')!r} that fits no family which draws token by token: "
        f"{', '.join(TOKEN_IMAGE_FAMILIES)}"
    )


def recognised(config: Mapping[str, Any]) -> list[TokenImageFamily]:
    """The families whose configuration this can be."""
    if config.get(FAMILY_KEY) in TOKEN_IMAGE_FAMILIES:
        return [TOKEN_IMAGE_FAMILIES[config[FAMILY_KEY]]]
    words = " ".join(map(str, config.get("architectures") or ()))
    return [
        family
        for family in TOKEN_IMAGE_FAMILIES.values()
        if config.get("model_type") == family.model_type
        and family.vocab_size in (None, config.get("vocab_size"))
        and (not family.architectures or any(word in words for word in family.architectures))
    ]


def check_not_refused(config: Mapping[str, Any], place: object = "model") -> None:
    """Refuse families that cannot be drawn with, by name. Raises UserError."""
    kind = str(config.get("model_type")).lower().replace("_", "-")
    if kind in _REFUSED:
        raise UserError(f"model: {place} is none of the families here: {_REFUSED[kind]}")
