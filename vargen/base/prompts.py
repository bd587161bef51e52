"""Prompts from the command line, from files and from standard input.

Belongs here: reading them, and the words of one that a tokenizer cannot tell a model. Does not belong here: how long a
prompt may be, and warning about it, which a pipeline does.

| ending | read as |
|---|---|
| `.txt`, `-` (standard input), none | one prompt per line; blank lines are skipped |
| `.csv`, `.tsv` | a table whose header names a column `prompt`, `caption` or `text` in any case |
| `.jsonl` | one string, or one object with such a key, per line |
| `.json`, `.parquet`, `.tar`, folders, `hub:NAME` | data sets, see `vargen.base.prompt_tables` |
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import check_text
from vargen.base.errors import UserError
from vargen.base.prompt_tables import is_table, read_rows
from vargen.base.reading import parse_json, read_bytes, read_text, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT_COLUMNS = ("prompt", "caption", "text")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


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
    if source != "-" and is_table(source):
        rows = read_rows(source, PROMPT_COLUMNS, argument)
        prompts = [check_prompt(_prompt_in(row, where), f"{where} the prompt") for where, row in rows]
        if not prompts:
            raise UserError(f"{argument}: {source} holds no prompt")
        return prompts
    path = Path(source).expanduser()
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

    if suffix in _DELIMITERS:
        prompts = list(_from_table(text, f"{argument}: {name}", _DELIMITERS[suffix]))
    elif suffix == ".jsonl":
        prompts = list(_from_json_lines(text, f"{argument}: {name}"))
    elif suffix in (".txt", ""):
        lines = enumerate(split_lines(text), start=1)
        prompts = [check_prompt(line, f"{argument}: {name}, line {number}:") for number, line in lines if line.strip()]
    else:
        raise UserError(f"{argument}: {name} must end in .txt, .csv, .tsv, .jsonl, .json, .parquet or .tar, or be -")
    if not prompts:
        raise UserError(f"{argument}: {name} holds no prompt")
    return prompts


def read_column(source: str, names: Sequence[str]) -> list[str] | None:
    """What a file of prompts says beside each prompt, under the first of `names` that it has; None if it has none."""
    path = Path(source).expanduser()
    suffix = path.suffix.lower()
    if source != "-" and is_table(source):
        rows: list[Any] = [row for _, row in read_rows(source, PROMPT_COLUMNS)]
        return _column_of(rows, names)
    if suffix not in (*_DELIMITERS, ".jsonl"):
        return None
    text = read_text(path, "prompts_file")
    if suffix == ".jsonl":
        rows = [parse_json(line) for line in split_lines(text) if line.strip()]
    else:
        lines = io.StringIO(text, newline="")
        rows = list(
            csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if suffix == ".tsv" else csv.DictReader(lines)
        )
    return _column_of(rows, names)


def _column_of(rows: Sequence[Any], names: Sequence[str]) -> list[str] | None:
    """See `read_column`; rows are mappings, or something else that has no columns."""
    rows = [{str(key).strip().lower(): row[key] for key in row} if isinstance(row, dict) else row for row in rows]
    for name in names:
        if rows and all(isinstance(row, dict) and row.get(name) is not None for row in rows):
            return [str(row[name]) for row in rows]
    return None


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
        if word.lower() not in seen and unknown_id in tokenizer(word, add_special_tokens=False)["input_ids"]:
            seen[word.lower()] = word
    return list(seen.values())


def split_lines(text: str) -> list[str]:
    """What a text editor calls lines: a line separator or a form feed within one ends none."""
    return io.StringIO(text, newline=None).read().split("\n")


def _from_table(text: str, name: str, delimiter: str) -> Iterable[str]:
    # Tab-separated files in the field (PartiPrompts) do not quote, and their prompts contain quotation marks.
    lines = io.StringIO(text, newline="")
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter)
    try:
        header = next(reader, [])
        columns = [cell.strip().lower() for cell in header]
        column = next((columns.index(wanted) for wanted in PROMPT_COLUMNS if wanted in columns), None)
        if column is None:
            raise UserError(f"{name}: the first line must name a column {' or '.join(PROMPT_COLUMNS)}")
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
            yield check_prompt(row[column], f"{where} the prompt")
    except csv.Error as error:
        raise UserError(f"{name}, line {reader.line_num}: {error}") from error


def _from_json_lines(text: str, name: str) -> Iterable[str]:
    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}:"
        try:
            value = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} not JSON ({reason_of(error)})") from error
        yield check_prompt(_prompt_in(value, where), f"{where} the prompt")


def _prompt_in(value: object, where: str) -> str:
    """The prompt in a string or a row. Raises UserError where there is none."""
    if isinstance(value, Mapping):
        own = {str(key).strip().lower(): value[key] for key in value}
        value = next((own[name] for name in PROMPT_COLUMNS if name in own), None)
    if not isinstance(value, str):
        raise UserError(f"{where} need a string, or an object with a string under {' or '.join(PROMPT_COLUMNS)}")
    return value
