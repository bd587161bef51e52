"""The `vargen` command: its subcommands, and how errors look.

Each subcommand has a module of its own in `vargen.commands`, or in another package. It is imported only when it is
called, so `--help` answers without importing torch. Bad input ends with one line, `vargen: error: ...`, and exit code
2; an interrupt ends with 130.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vargen.base.bounds import check_argument
from vargen.base.errors import UserError, did_you_mean
from vargen.base.reading import reason_of
from vargen.base.world import COMMANDS, Command, listed

OWN_COMMANDS = {
    name: Command(order, summary, f"vargen.commands.{name}")
    for order, name, summary in (
        (5, "check", "try a model: does the default draw what plain decoding draws?"),
        (10, "generate", "make pictures from prompts"),
        (20, "caption", "answer a question about a video"),
        (50, "bench", "compare decoding methods: speed, target passes, correctness"),
        (60, "evaluate", "score pictures by a protocol: FID, CLIP score, precision, recall, correctness"),
        (70, "tune", "search a method's settings for speed within a budget of quality"),
        (80, "train", "train any of the shipped models"),
        (90, "convert", "turn published LlamaGen and LANTERN weights into model folders"),
        (100, "methods", "list the decoding methods"),
        (110, "demo", "open a page to play with in a browser"),
        (120, "serve", "draw pictures over HTTP, for OpenAI's client"),
    )
}
"""vargen's own subcommands; a world adds its own (`vargen.base.world`)."""

_NO_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory|Invalid buffer size", re.IGNORECASE)
_LONGEST = 2000
"""The most characters of an error: names out of files can have any length."""
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_CONTROL = re.compile("\x1b\\[A|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys: control characters but for tabs and ends of lines, and those that turn the writing around."""
_OF_BARS = ("\r", "\x1b[A")
"""What progress bars move the cursor by."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        arguments: what follows `vargen` on the command line; None: `sys.argv`.

    Returns:
        The exit code: 0, 1 where a command's own help says so, 2 for bad input or a full disk, 130 after an interrupt.
    """
    if arguments is None:  # importing makes millions of objects that stay: looking through them takes a second
        gc.set_threshold(10_000)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    showwarning, warnings.showwarning = warnings.showwarning, _show_warning
    for stream in (sys.stdout, sys.stderr):  # a console without a letter shows its number instead
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    streams = sys.stdout, sys.stderr
    if streams[0] is not None and streams[0].isatty():
        sys.stdout = _Terminal(streams[0])
    if streams[1] is not None and streams[1].isatty():
        sys.stderr = _Terminal(streams[1], _OF_BARS)
    try:
        for number, argument in enumerate(arguments, start=1):
            check_argument(f"argument {number}", argument)
        return _dispatch(arguments)
    except UserError as error:
        return _fail(str(error))
    except KeyboardInterrupt as interrupt:
        print(f"vargen: interrupted{f'; {in_one_line(str(interrupt))}' if str(interrupt) else ''}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output has ended (`vargen methods | head -1`). Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        if error.errno in _NO_SPACE:
            return _fail(f"the disk is full{where}; free some space and run the same command again")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return _fail(f"{(error.strerror or 'not allowed').lower()}{where}; choose a place that can be written")
        if error.errno is None:  # of libraries, and shutil.Error, which lists what it could not do
            return _fail(f"a file could not be read or written ({reason_of(error)}); name another file or folder")
        return _fail(f"{(error.strerror or type(error).__name__).lower()}{where}; name another file or folder")
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError
        if isinstance(error, RecursionError):
            return _fail("something that was read is nested too deeply; copy it again, or write it flatter")
        if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
            raise
        reason = str(error).split("\n")[0] or "there is not enough memory"
        return _fail(f"{reason}; give a smaller batch_size, fewer draft tokens or a smaller model")
    except UnicodeError as error:  # names in no encoding of this system, or bytes that are no text
        return _fail(f"{reason_of(error)}; save it as UTF-8, or choose a name in other letters")
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of libraries in Rust, and no Exception
            raise
        return _fail(f"a tokenizer gave up ({error}); shorten the text, or copy the tokenizer's files again")
    finally:
        warnings.showwarning = showwarning
        sys.stdout, sys.stderr = streams


def _dispatch(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if command == "--version":
        from vargen import __version__

        print(f"vargen {__version__}")
        if "--verbose" in arguments[1:]:
            from specdecode.kernels.build import kind

            print(f"kernels: {kind()}")
        return 0
    commands = listed(OWN_COMMANDS, COMMANDS)
    if command not in commands:
        one_of = f"choose one of: {', '.join(commands)}{did_you_mean(command, commands)}"
        raise UserError(f"{command!r} is not a command; {one_of}")
    return importlib.import_module(commands[command].module).run(arguments[1:])


def _usage() -> str:
    commands = listed(OWN_COMMANDS, COMMANDS)
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    return "\n".join(
        (
            "usage: vargen COMMAND [options]",
            "",
            "Images from text with LlamaGen-style autoregressive models, and answers about videos, decoded faster.",
            "",
            *lines,
            "",
            "vargen COMMAND --help explains a command and every option it has.",
            "Try: vargen generate 'a shiny red sphere left of a small blue cube'",
        )
    )


class _Terminal:
    """A stream to a terminal, which shows the control characters of an answer or a foreign name and obeys none.

    Args:
        stream: of text. What goes into a file or a pipe is data and stays as it is.
        obeyed: what passes all the same.
    """

    def __init__(self, stream: Any, obeyed: tuple[str, ...] = ()) -> None:
        self._stream, self._obeyed = stream, obeyed

    def write(self, text: str) -> int:
        """Write, and return how many characters were given."""
        self._stream.write(_CONTROL.sub(lambda e: e[0] if e[0] in self._obeyed else repr(e[0])[1:-1], text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def in_one_line(message: str) -> str:
    """A message for a terminal: no line break, no control character of a foreign name, and not too much of one."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(message.split()))
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"


def _fail(message: str) -> int:
    """Print an error in one line."""
    with suppress(OSError):  # where nobody reads it, the code alone tells
        print(f"vargen: error: {in_one_line(message)}", file=sys.stderr)
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *args: object, **kwargs: object) -> None:
    """Print a warning in one line. Warnings about code are left out, since a user of the command cannot act on them."""
    if issubclass(category, DeprecationWarning | PendingDeprecationWarning | FutureWarning):
        return
    print(f"vargen: warning: {in_one_line(str(message))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
