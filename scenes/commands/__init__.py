"""The subcommands of `vargen` that need the world, one module each, with `run(arguments) -> exit code`.

This file names them for the entry points of `vargen.commands`; it imports nothing that is slow.
"""

from vargen.base.world import Command

SCENES = Command(30, "write rendered scenes with captions and their truth", "scenes.commands.scenes")
JUDGE = Command(40, "score a folder of generated pictures against its prompts", "scenes.commands.judge")
