"""`vargen serve` with the official client, in this process: pictures, streams, many clients, and a death.

What a server refuses: tests/hostile/test_server.py.
"""

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from called_app import client_of, openai
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import raised, refused
from tiny_pipelines import build_tiny_pipeline

from specdecode.drafters.draft_size import StepCosts
from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.serve.app import KEY, PLACE, WITHOUT_EFFECT, GenerationBody, ServeConfig, build_app, check_serving
from vargen.serve.engine import Engine, EngineStopped, Job, QueueFull

PROMPT, SIDE = "a red cube", 8


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(build_tiny_pipeline(), {"method": "jacobi"}, batch_size=8, queue=32)
    yield made
    made.close()


@pytest.fixture
def client(engine: Engine) -> Any:
    return client_of(build_app(engine, "tiny"))


def picture_of(encoded: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))


@pytest.fixture(scope="module")
def wanted() -> Callable[..., Any]:
    """The picture of a prompt and a seed, by a call of its own."""
    pipeline, known = build_tiny_pipeline(), dict[tuple[str, int], Any]()

    def draw(seed: int, prompt: str = PROMPT) -> Any:
        if (prompt, seed) not in known:
            generator = torch.Generator().manual_seed(seed)
            known[prompt, seed] = np.asarray(pipeline(prompt, generator=generator).images[0])
        return known[prompt, seed]

    return draw


def test_the_official_client_draws_two_pictures(client, wanted):
    draw, seeded = client.images.generate, {"extra_body": {"seed": 7}}
    answer = draw(prompt=PROMPT, n=2, size=f"{SIDE}x{SIDE}", response_format="b64_json", **seeded)
    for number, each in enumerate(answer.data):
        assert np.array_equal(picture_of(each.b64_json), wanted(7 + number)) and each.seed == 7 + number
    assert not hasattr(answer, "warnings") and "elephant" in draw(prompt="elephant").warnings[0]
    answer = draw(prompt=PROMPT, model="tiny", response_format="url", **seeded)
    head, _, encoded = answer.data[0].url.partition(",")
    assert head == "data:image/png;base64" and np.array_equal(picture_of(encoded), wanted(7))
    assert [draw(prompt=PROMPT).data[0].seed for _ in range(2)] == [1, 2], "the server counts where no seed is given"
    several = [draw(prompt=PROMPT, n=2).data for _ in range(2)]
    assert [each.seed for data in several for each in data] == [3, 4, 5, 6], "every picture has its own"
    assert [each.id for each in client.models.list()] == ["tiny"]


def test_fields_of_the_official_client_that_any_picture_satisfies_are_taken(client, wanted):
    said = {"model": "gpt-image-1", "user": "u", "quality": "hd", "style": "vivid", "moderation": "low"}
    said |= {"background": "opaque", "output_format": "png"}
    answer = client.images.generate(prompt=PROMPT, **said, extra_body={"seed": 7, "safety_identifier": "s"})
    assert np.array_equal(picture_of(answer.data[0].b64_json), wanted(7))
    for value in ("", 3, ["a"], {}):
        asked = GenerationBody.read({"prompt": PROMPT, **dict.fromkeys(WITHOUT_EFFECT, value)}, SIDE, True)
        assert asked == GenerationBody(PROMPT)


def test_requests_with_arguments_of_their_own_share_no_wave_with_others(wanted):
    """Six at once, whose waves follow the order of the queue, draw what calls with the same arguments draw."""
    pipeline, engine = build_tiny_pipeline(), Engine(build_tiny_pipeline(), {"method": "ar"}, batch_size=8)
    own = [{}, {"guidance_scale": 9.0}, {"temperature": 0}, {"negative_prompt": "a blue cone", "top_k": 5}]
    client = client_of(build_app(engine, "owner/tiny", methods={"wide": resolve_method("jacobi", {"window": 8})}))

    def draw(fields: dict[str, Any]) -> Any:
        answer = client.images.generate(prompt=PROMPT, extra_body={"seed": 7, **fields})
        return picture_of(answer.data[0].b64_json)

    with ThreadPoolExecutor(len(own)) as clients:
        for fields, drawn in zip(own, clients.map(draw, own), strict=True):
            picture = pipeline(PROMPT, generator=torch.Generator().manual_seed(7), **fields).images[0]
            assert np.array_equal(drawn, np.asarray(picture)), fields
    before = engine.totals.row_passes
    assert np.array_equal(draw({"method": "wide"}), wanted(7))
    assert engine.totals.row_passes - before < pipeline.grid_size**2
    for name in ("jpeg", "webp"):
        answer = client.images.generate(prompt=PROMPT, output_format=name, output_compression=60)
        encoded = base64.b64decode(answer.data[0].b64_json)
        assert Image.open(io.BytesIO(encoded)).format == name.upper() and answer.output_format == name
    assert client.models.retrieve("owner/tiny").id == "owner/tiny"
    raised(openai.NotFoundError, "'other' is no model here; owner/tiny is", client.models.retrieve, "other")
    raised(openai.BadRequestError, "method must be one of wide", draw, {"method": "jacobi"})
    engine.close()


def test_the_official_client_streams_partial_pictures(client, wanted):
    asked = {"stream": True, "partial_images": 2, "extra_body": {"seed": 3}}
    events, whole = [*client.images.generate(prompt=PROMPT, **asked)], wanted(3)
    kinds = [event.type for event in events]
    assert kinds == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [event.partial_image_index for event in events[:-1]] == [0, 1]
    assert events[-1].usage.total_tokens == 0, "nothing is sold by tokens"
    assert np.array_equal(picture_of(events[-1].b64_json), whole)
    assert all(picture_of(event.b64_json).shape == whole.shape for event in events)
    assert not np.array_equal(picture_of(events[0].b64_json), whole)


def test_many_clients_lose_nothing_and_corrupt_nothing(engine, client, wanted):
    """96 requests of 16 clients against a queue of 32; who is refused asks again."""

    def ask(number: int) -> Any:
        prompt = [PROMPT, "two small blue cones", "a sphere"][number % 3]
        several = {"n": 1 + (number % 10 == 0), "extra_body": {"seed": number % 7}}
        while True:
            try:
                return prompt, client.images.generate(prompt=prompt, **several).data
            except openai.RateLimitError:
                time.sleep(0.02)

    with ThreadPoolExecutor(16) as clients:
        for number, (prompt, data) in enumerate(clients.map(ask, range(96))):
            assert len(data) == 1 + (number % 10 == 0)
            assert all(np.array_equal(picture_of(each.b64_json), wanted(each.seed, prompt)) for each in data)
    text = client._client.get("/metrics").text
    assert 'vargen_requests_total{status="200"} 96.0' in text and "vargen_pictures 106.0" in text
    per_pass = next(line for line in text.splitlines() if line.startswith("vargen_tokens_per_pass"))
    assert float(per_pass.split()[1]) >= 1.0
    assert engine.waiting == engine.drawing == 0 and engine.totals.failures == 0


def test_a_full_queue_refuses_with_429_and_takes_all_of_a_request_or_nothing():
    pipeline, begun, go_on = build_tiny_pipeline(), threading.Event(), threading.Event()
    stream = pipeline.stream

    def slow(*arguments: Any, **settings: Any) -> Any:
        begun.set()
        assert go_on.wait(600)
        return stream(*arguments, **settings)

    pipeline.stream = slow
    engine = Engine(pipeline, queue=2)
    first = Job(PROMPT, 0)
    engine.submit([first])
    assert begun.wait(600)
    engine.submit([Job(PROMPT, 1)])
    raised(QueueFull, "1 pictures wait, and at most 2 may", engine.submit, [Job(PROMPT, 2), Job(PROMPT, 3)])
    draw = client_of(build_app(engine, "tiny")).images.generate
    raised(openai.RateLimitError, "at most 2 may; try again later", draw, prompt=PROMPT, n=2)
    gone = Job(PROMPT, 4)
    engine.submit([gone])
    assert gone.finished.cancel(), "a client that left is not drawn for"
    go_on.set()
    engine.close()
    assert first.finished.done() and engine.totals.pictures == 2, "what waited was drawn before the end"
    with pytest.raises(EngineStopped):
        engine.submit([Job(PROMPT, 5)])


class Held:
    """A pipeline whose pictures are their prompts. It draws none before `go_on`, and lets one more arrive."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.arrived: list[str] = []
        self.image_size = SIDE
        self.prompt_problems = lambda prompt: ()

    def stream(self, prompts: list[str], *, arriving: Any, **_: Any) -> Iterator[Any]:
        self.begun.set()
        assert self.go_on.wait(600)
        prompts = prompts + [prompt for prompt, _ in arriving(1, lambda prompt: True)]
        for index, prompt in enumerate(prompts):
            self.arrived.append(prompt)
            trace = SimpleNamespace(target_passes=1)
            yield SimpleNamespace(index=index, image=prompt, tokens=torch.zeros(1), trace=trace)


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_jobs_that_nobody_wants_any_more_take_no_place(left):
    held = Held()
    engine = Engine(held, batch_size=1, queue=len(left))
    try:
        engine.submit([Job("first", 0)])
        assert held.begun.wait(600)
        jobs = [Job(str(number), 0) for number in range(len(left))]
        engine.submit(jobs)
        for job, gone in zip(jobs, left, strict=True):
            assert not gone or job.finished.cancel()
        wanted = [job for job, gone in zip(jobs, left, strict=True) if not gone]
        assert engine.waiting == len(wanted)
        more = [Job(f"later {number}", 0) for number in range(sum(left))]
        engine.submit(more)
        raised(QueueFull, f"{len(left)} pictures wait", engine.submit, [Job("too many", 0)])
    finally:
        held.go_on.set()
        engine.close()
    assert held.arrived == ["first", *(job.prompt for job in (*wanted, *more))]


def test_jobs_that_nobody_wants_any_more_do_not_close_a_wave():
    """A narrow wave takes what arrives unless more wait than it has room for, and then leaves all to a wider one."""
    held = Held()
    engine = Engine(held, batch_size=8)
    gone, wanted = [Job("gone", 0), Job("gone", 1)], Job("wanted", 0)
    engine.submit([Job("first", 0), Job("first", 1)])
    assert held.begun.wait(600)
    held.begun.clear()
    engine.submit([*gone, wanted])
    assert all(job.finished.cancel() for job in gone)
    held.go_on.set()
    engine.close()
    assert held.arrived == ["first", "first", "wanted"] and not held.begun.is_set(), "both in one wave"


def test_a_client_that_leaves_takes_its_pictures_out_of_the_queue():
    """By ASGI itself: once the body is read, a server's next message is that the client has left."""
    held = Held()
    engine = Engine(held, batch_size=1, queue=2)
    engine.submit([Job("first", 0)])
    assert held.begun.wait(600)
    app, sent = build_app(engine, "tiny"), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask(*messages: Any, path: str = PLACE) -> None:
        coming = iter(messages)

        async def receive() -> Any:
            message = next(coming)
            if message["type"] == "http.disconnect":
                waited.append(engine.waiting)
            return message

        scope = {"type": "http", "method": "POST" if messages else "GET", "path": path, "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http"}
        await asyncio.wait_for(app(scope, receive, send), 600)

    def asked(**fields: Any) -> Any:
        return {"type": "http.request", "body": json.dumps({"prompt": "gone", **fields}).encode()}

    body, stream = asked(n=2), asked(stream=True)
    rest, left, waited = {"type": "http.request", "body": b""}, {"type": "http.disconnect"}, list[int]()
    for messages in ([body, left], [body, rest, left], [body | {"more_body": True}, left], [stream, left]):
        asyncio.run(ask(*messages))
        assert all(job.finished.cancelled() for job in engine._waiting), "before anybody asks who waits"
    assert waited == [2, 2, 0, 1], "the third one left before it had sent all"
    asyncio.run(ask(path="/metrics"))
    text = sent[-1]["body"].decode()
    assert 'vargen_requests_total{status="499"} 3.0' in text and 'vargen_requests_total{status="200"} 1.0' in text
    live = [Job("live", 0), Job("live", 1)]
    engine.submit(live)
    held.go_on.set()
    engine.close()
    assert held.arrived == ["first", "live", "live"]


@pytest.mark.parametrize(
    ("places", "free", "waiting", "joins"),
    [
        *((8, 1, 1, True), (8, 4, 1, True), (8, 5, 1, False), (8, 7, 1, False), (8, 8, 3, False)),
        *((2, 1, 1, True), (2, 1, 2, False), (1, 1, 1, False)),
    ],
)
def test_a_wave_takes_no_more_where_the_next_one_fits_better(places, free, waiting, joins):
    """Wider, or less than half as wide; a batch has eight places."""
    waves = list[tuple[int, int]]()

    class Wave(Held):
        def stream(self, prompts: list[str], *, batch_size: int, arriving: Any, **_: Any) -> Iterator[Any]:
            if not waves:
                self.begun.set()
                assert self.go_on.wait(600)
            joined = [] if waves else arriving(free, lambda prompt: True)
            waves.append((batch_size, len(joined)))
            for index in range(len(prompts) + len(joined)):
                trace = SimpleNamespace(target_passes=1)
                yield SimpleNamespace(index=index, image="", tokens=torch.zeros(1), trace=trace)

    held = Wave()
    engine = Engine(held, batch_size=8)
    with engine._changed:
        engine.submit([Job(PROMPT, seed) for seed in range(places)])
    assert held.begun.wait(600)
    engine.submit([Job(PROMPT, seed) for seed in range(waiting)])
    held.go_on.set()
    engine.close()
    assert waves == ([(places, waiting)] if joins else [(places, 0), (waiting, 0)])


def test_a_job_that_is_cancelled_as_it_is_taken_is_not_drawn(engine):
    gone, wanted = Job("gone", 0), Job("wanted", 0)
    with engine._changed:
        engine._waiting.extend([gone, wanted])
        assert gone.finished.cancel()
        assert engine._taken(2) == [wanted]


def test_one_that_fails_fails_alone(engine, wanted):
    jobs = [Job(PROMPT, 0), Job("", 1), Job(PROMPT, 2)]
    engine.submit(jobs)
    assert np.array_equal(np.asarray(jobs[0].finished.result(600)), wanted(0))
    assert isinstance(jobs[1].finished.exception(600), UserError)
    assert np.array_equal(np.asarray(jobs[2].finished.result(600)), wanted(2))
    assert engine.alive and engine.totals.failures == 1


def test_passes_are_added_up_over_pictures():
    engine, drawing = Engine(build_tiny_pipeline(), {"method": "ar"}), []
    jobs = [Job(PROMPT, 0), Job(PROMPT, 1)]
    for job in jobs:
        job.finished.add_done_callback(lambda _: drawing.append(engine.drawing))
    engine.submit(jobs)
    engine.close()
    assert drawing == [1, 0], "a finished picture is not drawn any more"
    assert engine.totals.pictures == 2 and engine.totals.row_passes == engine.totals.tokens > 2


def by_request(pipeline: Any, seed: int) -> int:
    engine = Engine(pipeline)
    engine.submit([Job(PROMPT, seed)])
    engine.close()
    return engine.totals.row_passes


def by_stream(pipeline: Any, seed: int) -> int:
    (picture,) = pipeline.stream([PROMPT], generator=[torch.Generator().manual_seed(seed)], batch_size=8)
    return picture.trace.target_passes


@pytest.mark.parametrize("way", [by_request, by_stream])
def test_a_picture_alone_takes_the_passes_of_a_call(way, tmp_path, monkeypatch):
    """By the default: no row is beside it, so what rows cost beside each other does not keep it from drafting. One of
    the page: tests/vargen/demo/test_race.py."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))

    def costs(rows: int, *_: Any) -> StepCosts:
        return StepCosts((1, 2, 9), (1.0, 1.0, 1.0) if rows <= 2 else (1.0, 2.0, 9.0))

    monkeypatch.setattr("vargen.models.draft_sizes.assumed_step_costs", costs)
    monkeypatch.setattr("vargen.models.draft_sizes.MeasuredDraftSizes.clock", None)
    call = build_tiny_pipeline()(PROMPT, generator=torch.Generator().manual_seed(3))
    assert way(build_tiny_pipeline(), 3) == call.trace.target_passes < 16


def test_partial_pictures_are_evenly_spaced():
    shown: list[tuple[int, int]] = []
    engine, job = Engine(SimpleNamespace(grid_size=4, decode_tokens=lambda tokens: [tokens])), Job(PROMPT, 0, 3)
    for length in range(1, 17):
        job.on_partial = lambda _, number, length=length: shown.append((length, number))
        tensors = {"tokens": torch.zeros(1, 16).long(), "decided": torch.arange(16)[None] < length}
        engine._show({0: job}, tensors | {"lengths": torch.tensor([length]), "pictures": [0]})
    engine.close()
    assert shown == [(4, 0), (8, 1), (12, 2)]


def test_a_thread_that_dies_ends_its_requests_in_500_and_health_says_so():
    pipeline = build_tiny_pipeline()

    def die(*_: Any, **__: Any) -> Any:
        raise SystemExit(3)

    pipeline.stream = die
    client = client_of(build_app(Engine(pipeline), "tiny"))
    assert client._client.get("/health").json()["status"] == "ok"
    for _ in range(2):  # the one that it dies of, and one that comes later
        raised(openai.InternalServerError, "start the server again", client.images.generate, prompt=PROMPT)
    answer = client._client.get("/health")
    assert answer.status_code == 503 and answer.json()["status"] == "stopped"


def test_a_key_is_asked_for(engine, monkeypatch):
    app = build_app(engine, "tiny", "secret")
    for sent, statuses in (("secret", [200, 200, 200]), ("other", [401, 401, 200])):
        client, headers = client_of(app, sent), {"authorization": f"Bearer {sent}"}
        places = ("/metrics", "/v1/models", "/health")
        assert [client._client.get(place, headers=headers).status_code for place in places] == statuses
    assert client_of(app, "secret").images.generate(prompt=PROMPT).data
    raised(openai.AuthenticationError, "the key is missing or wrong", client.images.generate, prompt=PROMPT)
    monkeypatch.delenv(KEY, raising=False)
    assert check_serving(ServeConfig()) is None
    refused("lets other machines in; set a key", check_serving, ServeConfig(host="192.168.0.1"))
    monkeypatch.setenv(KEY, "secret")
    assert check_serving(ServeConfig(host="0.0.0.0")) == "secret"
