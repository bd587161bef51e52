"""transformers' `generate` by speculative decoding: the file that a folder on the hub must hold.

Belongs here: handing a call on. Does not belong here: decoding, which the package `specdecode` does.
"""

from typing import Any

import specdecode
from specdecode.text.generate_arguments import through_transformers


def generate(
    model: Any,
    inputs: Any = None,
    assistant_model: Any = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **given: Any,
) -> Any:
    """Called by `model.generate(..., custom_generate=FOLDER, trust_remote_code=True)` with all of its arguments.

    Args:
        model: of transformers.
        inputs: [B, T] int64, unless `input_ids` are among the others.
        assistant_model: drafts, as in transformers.
        streamer, tokenizer: of the call.
        given: its other arguments, and those of `specdecode.custom_generate`.
    """
    input_ids = given.pop("input_ids", inputs)
    arguments = {**given, "stream_to": streamer}
    if assistant_model is not None:
        arguments["draft_model"] = assistant_model
    return through_transformers(model, input_ids, specdecode.custom_generate, arguments, tokenizer)
