"""Prompts for the training of a text drafter, and a language model's own continuations, which the head learns from.

Prompts can be composed from words: an endless supply, a function of a seed. Those that a benchmark asks
(`benchmarks/real_text_prompts.json`) share no sentence with these, so a head is judged on other texts.

Belongs here: prompts, and asking the model. Does not belong here: keeping the answers (`answers.py`), hidden states,
the head and its losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import specdecode
from vargen.training.answers import FILLER

_WORDS = {
    "person": """Amira Beno Carla Dario Edda Farid Greta Hugo Ilse Joana Kofi Lena Marek Nuria Oskar Petra Quentin Rosa
        Samir Tilda Uwe Vera Wanda Yusuf Zora""",
    "family": """Abbas Bell Costa Dahl Egger Ferro Gupta Holm Ito Jansen Klein Lopez Mensah Novak Okafor Price Rossi
        Silva Tran Vogel Weber Young""",
    "place": """Arlen Brickton Caldera Dunmore Eastvale Fernhill Glanford Highmoor Ironbridge Juniper Kestrel Larkfield
        Millrace Northgate Oldbury Pinewood Quarry Redcliff Stonewell Thornby""",
    "firm": """Amberline Bluefern Cobalt Drift Evergrain Foxglove Granite Harrow Inkwell Kitefield Lumen Meridian
        Northwind Orchard Pilot Quill Riverside Saffron Tinker Umbra""",
    "thing": """bridge library bakery orchard museum tram school garden factory theatre market hospital station workshop
        bicycle telescope greenhouse ferry laboratory kitchen""",
    "thing2": "mill tower pool harbour airport castle farm stadium bookshop playground",
    "topic": """rain bread chess volcanoes bicycles sleep honey maps glaciers music tea rivers batteries magnets whales
        coffee paper clocks vaccines soil spiders concrete printing democracy inflation memory dreams gravity""",
    "topic2": "wind rice football earthquakes trains birds sugar cameras deserts painting milk lakes robots planets",
    "skill": """cook_rice learn_a_language repair_a_tyre plant_tomatoes save_money give_a_talk write_a_letter
        draw_a_face start_running read_faster clean_a_window fold_a_shirt grow_basil train_a_dog study_for_an_exam
        keep_a_diary choose_a_laptop make_friends bake_a_cake build_a_shelf""",
    "verb": "opened closed repaired sold painted rebuilt visited measured designed rented",
    "month": "January February March April May June July August September October November December",
    "colour": "red blue green yellow black white orange grey",
    "foreign": "French Spanish German Italian Portuguese Dutch",
    "code": "Python Python Python JavaScript Java C++ Go Rust",
    "change": """Add_type_hints Add_a_docstring Add_error_handling Rename_the_variables Add_three_tests
        Explain_it_line_by_line Turn_it_into_a_class Write_it_in_one_line Repeat_it_with_comments""",
    "work": """returns_the_sum_of_all_even_numbers_in_a_list counts_how_often_each_word_occurs_in_a_text
        reverses_a_string checks_whether_a_number_is_prime merges_two_sorted_lists finds_the_longest_word_of_a_sentence
        removes_duplicates_from_a_list converts_Celsius_to_Fahrenheit returns_the_n-th_Fibonacci_number
        flattens_a_nested_list returns_the_longest_line_of_a_file sorts_records_by_a_key validates_an_e-mail_address
        computes_the_median_of_a_list groups_words_by_their_first_letter checks_whether_two_strings_are_anagrams
        transposes_a_matrix counts_the_vowels_of_a_string finds_all_pairs_with_a_given_sum writes_a_table_to_a_file""",
    "ending": """. ,_with_an_example. ,_with_comments. _and_explain_it. _without_loops. _and_test_it. _in_two_ways.""",
}
"""Words by the place they take in a pattern; an underscore stands for a space."""

_SENTENCES = """
    {person} {family} {verb} the {thing} in {place} on {day} {month}.
    The {colour} {thing} of {place} is {number} years old.
    {firm} employs {number} people, most of them in {place}.
    In {month} the {thing} was {verb} for {number} thousand euros.
    {person} says that the {thing} needs a new {thing2}.
    Every {month} about {number} visitors come to {place} to see the {thing}.
    {family} and {person} met at the {thing} and founded {firm}.
    The price of a ticket rose from {day} to {number} euros.
    Nobody in {place} knew who had {verb} the {colour} {thing}.
    {firm} plans a second {thing} near {place} by {month}.
    It takes {day} minutes to walk from the {thing} to the {thing2}.
    {person} keeps {number} {colour} photographs of the {thing} at home.
    After {number} days of rain the {thing} had to close until {day} {month}.
    The council of {place} voted {number} to {day} for the {thing}.
"""

_BODIES = """
    def {thing}({colour}):|    total = 0|    for value in {colour}:|        total += value|    return total
    def {thing}({colour}):|    kept = []|    for item in {colour}:|        kept.append(item * {day})|    return kept
    def {thing}({colour}):|    if {colour} > {number}:|        return {colour} - {day}|    return {number} - {colour}
    def {thing}({colour}):|    found = {{}}|    for word in {colour}.split():|        found[word] = 1|    return found
"""

_TASKS = (
    """
    Write a {code} function that {work}{ending}
    {change}:||```python|{body}|```
    {change}:||```python|{body}|```
    {change}:||```python|{body}|```
    Write a {code} function that {work}{ending}
    """,
    """
    Summarize the text.||{passage}
    Summarize the text in one sentence.||{passage}
    Write a headline and a short summary.||{passage}
    List the main points of the text.||{passage}
    """,
    """
    {passage}||Who is mentioned in the text?
    {passage}||What happened, and when?
    {passage}||Which numbers does the text give, and what do they mean?
    {passage}||What do we learn about the places?
    {passage}||Which firms does the text name? Answer with quotations.
    """,
    """
    What is {topic}, and why is it important?
    Tell me three facts about {topic}.
    How can I {skill}?
    Give me five tips to {skill}.
    Explain {topic} to a child.
    Write a short story about {person} and a {thing}.
    Write a poem about {topic} and {topic2}.
    What are the advantages and disadvantages of {topic}?
    Compare {topic} and {topic2}.
    Write an e-mail to {person} about the {thing} in {place}.
    Plan a weekend in {place} with a visit to the {thing}.
    What should I know before I {skill}?
    Make a list of ten words that go with {topic}.
    """,
    """
    Translate into {foreign}:||{few}
    Translate into {foreign}, sentence by sentence.||{few}
    Translate into {foreign}, then give the English text again.||{few}
    """,
    """
    List all names of people.||{passage}
    List all numbers with the words next to them.||{passage}
    List all places.||{passage}
    Repeat every sentence that mentions a month.||{passage}
    Make a table of who did what.||{passage}
    Write the names and dates as JSON.||{passage}
    Copy the text and number its sentences.||{passage}
    """,
)  # fmt: skip
"""Patterns of code, summaries, questions about a text, chat, translation and extraction. A bar ends a line."""


def compose_prompts(split: str, seed: int, count: int) -> list[str]:
    """Prompts of six kinds in turns.

    Args:
        split: "train" or "heldout", which have other prompts at the same seed.
        seed: of all of them; prompt i is the same whatever `count` is.
    """
    return [_prompt(number, Random(f"{split} {seed} {number}")) for number in range(count)]


def _prompt(number: int, random: Random) -> str:
    """One prompt, of the kind whose turn it is."""
    pattern = random.choice(_lines(_TASKS[number % len(_TASKS)]))
    return _filled(pattern, random).replace("|", "\n")


def _filled(pattern: str, random: Random) -> str:
    """A pattern with words in its places."""
    words = {name: random.choice(listed.split()).replace("_", " ") for name, listed in _WORDS.items()}
    texts = {"body": _filled(random.choice(_lines(_BODIES)), random)} if "{body}" in pattern else {}
    for name, fewest, most in (("few", 1, 3), ("passage", 4, 8)):
        if f"{{{name}}}" in pattern:
            chosen = random.sample(_lines(_SENTENCES), random.randint(fewest, most))
            texts[name] = " ".join(_filled(each, random) for each in chosen)
    return pattern.format(**words, **texts, day=random.randint(2, 28), number=random.randint(30, 400))


def _lines(block: str) -> list[str]:
    return [line.strip() for line in block.strip().splitlines()]


@dataclass(frozen=True)
class TextPrompts:
    """Prompts as numbered questions, in the model's chat template where it has one.

    Args:
        tokenizer: of the model.
        texts: the prompts.
        split: "train" or "heldout".
        described: plain values that decide which prompts these are.
        batch_size: prompts that are continued at once.
    """

    tokenizer: Any
    texts: Sequence[str]
    split: str
    described: dict[str, Any]
    batch_size: int

    def inputs(self, number: int) -> dict[str, Tensor]:
        """{"input_ids": [1, T] int64} of a prompt."""
        text = self.texts[number]
        if getattr(self.tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": text}]
            ids = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = self.tokenizer(text)["input_ids"]
        return {"input_ids": torch.tensor([ids], dtype=torch.int64)}


@dataclass(frozen=True)
class TextAnswers:
    """Plays `Answer`: a model continues prompts, decoded by `specdecode.generate`.

    Args:
        model: a causal language model of transformers.
        max_new_tokens: of an answer, at most.
        temperatures: of batch after batch, in turns; 0 is greedy.
        seed: of drawn tokens; prompt i has a generator of its own.
    """

    model: Any
    max_new_tokens: int
    temperatures: Sequence[float]
    seed: int

    def __call__(self, first: int, inputs: Sequence[dict[str, Tensor]]) -> Tensor:
        """[B, n] int32 answers to prompts number `first` and on, each with the token that ended it."""
        device = self.model.get_input_embeddings().weight.device
        longest = max(each["input_ids"].shape[1] for each in inputs)
        missing = [longest - each["input_ids"].shape[1] for each in inputs]
        ids = torch.cat([F.pad(each["input_ids"], (left, 0)) for each, left in zip(inputs, missing, strict=True)])
        mask = torch.arange(longest) >= torch.tensor(missing)[:, None]
        result = specdecode.generate(
            self.model,
            ids.to(device),
            attention_mask=mask.to(device),
            method="ar",  # of many rows, the slowest decides how many passes there are
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperatures[first // len(inputs) % len(self.temperatures)],
            generator=[torch.Generator(device).manual_seed(self.seed + first + row) for row in range(len(inputs))],
        )
        tokens = result.sequences[:, longest:]
        is_over = torch.arange(tokens.shape[1], device=device) >= result.lengths[:, None]
        return tokens.masked_fill(is_over, FILLER).to("cpu", torch.int32)
