"""Prompts from files and standard input: what is read, and one line that names the place where nothing can be."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from refusals import refused

from vargen.base.prompts import gather_prompts, read_column, read_prompts

GOOD = {
    "a.txt": "a red cube\n\n  two cones \n",
    "no_ending": "a red cube\ntwo cones",
    "a.csv": 'id,Prompt\n1,"a red cube"\n\n2, two cones\n',
    "one_column.csv": "caption\na red cube\ntwo cones\n",
    "a.tsv": 'text\tnote\na red cube\tsaid "so\ntwo cones\t\n',
    "a.jsonl": '"a red cube"\n{"id": 7, "caption": "two cones"}\n',
    "of_macs.csv": "prompt,id\ra red cube,1\rtwo cones,2\r",
    "of_windows.csv": "\ufeffprompt,id\r\na red cube,1\r\ntwo cones,2\r\n",
    "with_mark.txt": "\ufeffa red cube\ntwo cones\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_every_kind_of_file_gives_the_prompts(tmp_path, name):
    (tmp_path / name).write_text(GOOD[name], encoding="utf-8")
    assert read_prompts(str(tmp_path / name)) == ["a red cube", "two cones"]


def test_commas_need_no_quotes_in_a_table_of_one_column(tmp_path):
    (tmp_path / "a.csv").write_text("prompt\na red cube, on grass, at sunset\n")
    assert read_prompts(str(tmp_path / "a.csv")) == ["a red cube, on grass, at sunset"]


def test_arguments_come_before_the_file_and_repetitions_stay(tmp_path):
    (tmp_path / "a.txt").write_text("two cones\n")
    gathered = gather_prompts([" a red cube ", "two cones"], str(tmp_path / "a.txt"))
    assert gathered == ["a red cube", "two cones", "two cones"]


def test_standard_input_is_read_as_utf8_lines(monkeypatch):
    stdin = SimpleNamespace(buffer=io.BytesIO("a red cube\n\nein grüner Kegel\n".encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert gather_prompts([], "-") == ["a red cube", "ein grüner Kegel"]


def test_json_lines_written_by_json_are_read_back(tmp_path):
    prompts = ['a "red" cube', "schwarz\u2028weiß", "tab\there"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    assert read_prompts(str(tmp_path / "a.jsonl")) == prompts


def test_a_separator_within_a_line_ends_none(tmp_path):
    odd = "a cube\u2028on \x0c grass\x85"
    (tmp_path / "a.txt").write_text(f"{odd}\r\na cone\r", newline="", encoding="utf-8")
    assert read_prompts(str(tmp_path / "a.txt")) == [odd.strip(), "a cone"]
    (tmp_path / "a.jsonl").write_text(f'{{"prompt": "{odd.strip().replace(chr(12), "")}"}}\n', encoding="utf-8")
    assert read_prompts(str(tmp_path / "a.jsonl")) == [odd.strip().replace("\x0c", "")]


def test_errors_name_the_argument_and_columns_come_in_any_case(tmp_path):
    refused("^questions: cannot read", read_prompts, str(tmp_path / "none.txt"), "questions")
    (tmp_path / "a.csv").write_text("Image_ID,prompt\n7,a cube\n8,a cone\n")
    assert read_column(str(tmp_path / "a.csv"), ("image_id",)) == ["7", "8"]
