"""Prompts from the command line, from files and from standard input.

Does not belong here: how long a prompt may be, and warning about it, which a pipeline does.

| ending | read as |
|---|---|
| `.txt`, `-` (standard input), none | one prompt per line; blank lines are skipped |
| `.csv`, `.tsv` | a table whose header names a column `prompt`, `caption` or `text` in any case |
| `.jsonl` | one string, or one object with such a key, per line |
| `.json`, `.parquet`, `.tar`, folders, `hub:NAME` | data sets, see `vargen.base.prompt_tables` |
| the name of a shipped file | `scenes-geneval`, `scenes-parti` |
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import check_text, shown
from vargen.base.errors import UserError
from vargen.base.prompt_tables import Row, is_table, read_rows
from vargen.base.reading import expanded, parse_json, read_bytes, reason_of
from vargen.base.resources import find_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT_COLUMNS = ("prompt", "caption", "text")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_QUOTED = re.compile(r'"(?=.*"".*")(?:[^"]|"")*"', re.DOTALL)
"""A cell in quotes whose own are doubled."""


def gather_prompts(prompts: Sequence[str], prompts_file: str | None = None) -> list[str]:
    """Prompts given as arguments, followed by those of a file ("-": standard input).

    Returns:
        The prompts, without surrounding white space, in order, repetitions included.

    Raises:
        UserError: an empty prompt, a file that cannot be read, or one without prompts.
    """
    gathered = [check_prompt(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]
    if prompts_file is not None:
        gathered += read_prompts(prompts_file)
    return gathered


def check_prompt(prompt: str, where: str) -> str:
    """`prompt` without surrounding white space. Raises UserError when nothing is left; `where` names it."""
    if not prompt.strip():
        raise UserError(f"{where} is empty; describe the picture in words")
    check_text(where, prompt)
    return prompt.strip()


def read_prompts(source: str, argument: str = "prompts_file") -> list[str]:
    """All prompts of a file, or of standard input for "-".

    Args:
        source: the file.
        argument: what errors call it.

    Raises:
        UserError: see `gather_prompts`.
    """
    prompts = [prompt_of(row, where) for where, row in read_records(source, argument)]
    if not prompts:
        raise UserError(f"{argument}: {'standard input' if source == '-' else source} holds no prompt")
    return prompts


def read_records(
    source: str, argument: str = "prompts_file", columns: tuple[str, ...] = PROMPT_COLUMNS
) -> Iterator[tuple[str, Row]]:
    """The rows of a file, of standard input for "-", or of a data set, each with its place for errors.

    A line of text is a row with a `prompt` alone. Keys are as the file has them, those of tables in lower case.

    Args:
        source, argument: as for `read_prompts`.
        columns: a table must have one of them.

    Raises:
        UserError: see `gather_prompts`.
    """
    if source != "-" and is_table(source):
        return read_rows(source, columns, argument)
    path = find_prompts(expanded(source))
    if source == "-" and sys.stdin is None:
        raise UserError(f"{argument}: standard input is closed; name a file")
    if source == "-":
        # As bytes: prompts are UTF-8 here whatever the terminal's locale says.
        content, name, suffix = sys.stdin.buffer.read(), "standard input", ".txt"
    else:
        try:
            content, name, suffix = read_bytes(path, argument), str(path), path.suffix.lower()
        except UserError:
            raise
        except (OSError, ValueError) as error:
            raise UserError(f"{argument}: cannot read {path} ({reason_of(error)})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{argument}: {name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    where = f"{argument}: {name}"
    if suffix in _DELIMITERS:
        return _from_table(text, where, _DELIMITERS[suffix], columns)
    if suffix == ".jsonl":
        return _from_json_lines(text, where)
    if suffix in (".txt", ""):
        lines = enumerate(split_lines(text), start=1)
        return ((f"{where}, line {number}:", {"prompt": line}) for number, line in lines if line.strip())
    raise UserError(f"{where} must end in .txt, .csv, .tsv, .jsonl, .json, .parquet or .tar, or be -")


def read_column(source: str, names: Sequence[str]) -> list[str] | None:
    """The column beside the prompts of a file that has the first of `names` which it has; None if it has none."""
    if source == "-":
        return None
    rows = [lower_keys(row) for _, row in read_records(source)]
    for name in names:
        if rows and all(row.get(name) is not None for row in rows):
            return [str(row[name]) for row in rows]
    return None


def lower_keys(row: Row) -> dict[str, Any]:
    """A row by names of columns in lower case."""
    return {str(key).strip().lower(): value for key, value in row.items()}


def unknown_words(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Words of `text` that the tokenizer cannot represent, in order, each once whatever its case.

    Args:
        tokenizer: any tokenizer; one without an unknown token knows everything.
        text: a prompt.
    """
    unknown_id = tokenizer.unk_token_id
    if unknown_id is None:
        return []
    seen: dict[str, str] = {}
    for word in re.findall(r"[^\W_]+(?:['\u2019][^\W_]+)*|[^\w\s]|_", text):
        if word.lower() in seen:
            continue
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        if not ids or unknown_id in ids:  # some tokenizers leave out what they cannot represent
            seen[word.lower()] = word
    return list(seen.values())


def split_lines(text: str) -> list[str]:
    """Lines as a text editor has them: a line separator or a form feed within one ends none."""
    return io.StringIO(text, newline=None).read().split("\n")


def _from_table(text: str, name: str, delimiter: str, wanted: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
    # Tab-separated files in the field (PartiPrompts) do not quote, and their prompts contain quotation marks. What
    # pandas writes quotes a cell with a mark in it, and doubles that; or all, the header too.
    lines = io.StringIO(text, newline="")
    bare = delimiter == "\t" and not text.startswith('"')
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE if bare else csv.QUOTE_MINIMAL, strict=True)
    try:
        header = next(reader, [])
        columns = [cell.strip().lower() for cell in header]
        if twice := next((name for name in columns if name and columns.count(name) > 1), None):
            raise UserError(f"{name}: the first line names two columns {twice!r:.80}; keep one")
        if not set(columns) & set(wanted):
            raise UserError(f"{name}: the first line must name a column {' or '.join(wanted)}")
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{name}, line {reader.line_num}:"
            if len(header) == 1:
                # One column needs no separator, and caption lists are written without quotes around commas.
                row = [delimiter.join(row)]
            elif len(row) != len(header):
                raise UserError(
                    f"{where} {len(row)} cells under {len(header)} columns; quote cells that contain {delimiter!r}"
                )
            if bare:
                row = [cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell for cell in row]
            yield where, dict(zip(columns, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: {error}") from error


def _from_json_lines(text: str, name: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}:"
        try:
            value = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} not JSON ({reason_of(error)})") from error
        yield where, value if isinstance(value, Mapping) else {"prompt": value}


def prompt_of(row: Row, where: str) -> str:
    """The prompt in a row. Raises UserError for a row without one; `where` names the row."""
    own = lower_keys(row)
    if len(own) < len(row):
        raise UserError(f"{where} two keys differ by their case alone: {', '.join(map(str, row))[:80]}; keep one")
    name = next((name for name in PROMPT_COLUMNS if name in own), "")
    if not isinstance(value := own.get(name), str):
        found = f"{name} holds {shown(value)}" if name else f"it has {', '.join(map(str, row))[:80] or 'none'}"
        raise UserError(f"{where} need a string, or an object with one under {' or '.join(PROMPT_COLUMNS)}; {found}")
    return check_prompt(value, f"{where} the prompt")
