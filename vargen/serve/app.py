"""The application: `/v1/images/generations` and `edits` as OpenAI's client speaks them, health, metrics, and a key.

Belongs here: requests and answers. Does not belong here: which pictures are drawn together (`engine.py`).
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import importlib.util
import io
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PIXELS, MAX_SEED, SAMPLING_BOUNDS, check_choice, check_text
from vargen.base.errors import NotFiniteError, UserError, did_you_mean
from vargen.base.http_clients import bounded_protocol, foreign_host, foreign_page, is_own_machine
from vargen.base.options import DECODING, Settings, option, options_of
from vargen.base.path_roles import READ_NAMES
from vargen.base.reading import RepeatedKeyError, parse_json, reason_of
from vargen.checkpoints.options import SamplingOptions
from vargen.methods.advice import IN_BATCHES
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import read_method_list, resolve_method
from vargen.serve.engine import Engine, Job, QueueFull
from vargen.serve.forms import open_edited, read_form

if TYPE_CHECKING:
    from PIL.Image import Image
    from starlette.requests import Request

MOST_PICTURES = 10
"""The most pictures of one request, as in OpenAI's interface."""
MOST_PARTIAL = 3
"""The most partial pictures of one picture, likewise."""
WITHOUT_EFFECT = (
    *("model", "user", "safety_identifier", "quality", "complexity", "style", "moderation", "input_fidelity"),
)
"""Fields of OpenAI's interface that are taken whatever they say: any picture of the prompt answers them rightly. Of
models, which clients name by default, there is one here."""
MAX_BODY, MAX_FORM, MAX_READ = 1 << 18, 1 << 24, 1 << 28
"""The most bytes of a request, of one with pictures, and of all that are read at once."""
PLACE, EDITS, HEALTH = "/v1/images/generations", "/v1/images/edits", "/health"
"""Where pictures are asked for, and edits; and where anybody may ask whether the server lives, under any name."""
_KINDS = {PLACE: "application/json", EDITS: "multipart/form-data"}
KEY = "VARGEN_API_KEY"
"""The variable of the environment that holds the key of clients."""


class TooLarge(UserError):
    """A request has more bytes than are read."""


class ClientLeft(UserError):
    """Nobody waits for the answer any more."""


_STATUS: dict[type[Exception], tuple[int, str]] = {
    TooLarge: (413, "invalid_request_error"),
    ClientLeft: (499, "invalid_request_error"),  # nginx's status, for the metric alone
    QueueFull: (429, "rate_limit_error"),
    NotFiniteError: (500, "server_error"),
    UserError: (400, "invalid_request_error"),
    Exception: (500, "server_error"),
}
"""The answer to a request that fails: that of the first class which the error has."""


@dataclass(frozen=True)
class ServeConfig(SamplingOptions):
    """What to serve, and to whom."""

    seed: int = 0
    """Seed of the first picture for which a request gives none; each further one has the next seed."""
    method: str = option("jacobi", path=READ_NAMES, group=DECODING)
    """Decoding method or preset of all pictures; `vargen methods` lists them."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the method's defaults."""
    allowed_methods: str | None = option(None, path=READ_NAMES, group=DECODING)
    """Methods, presets or YAML files of settings, separated by commas, that a request may name as its `method`."""
    batch_size: int = option(8, least=1, most=MAX_BATCH_SIZE, group=DECODING)
    """Pictures that are drawn at once."""
    queue: int = option(64, least=1, most=MAX_BATCH_SIZE)
    """Pictures that may wait; further requests are refused with status 429."""
    host: str = "127.0.0.1"
    """Address of the server. 127.0.0.1 is for this machine alone; any other needs a key in VARGEN_API_KEY."""
    port: int = option(8000, least=1, most=65_535)
    """Number of its port."""

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_method(self.method, self.method_options)


def check_serving(config: ServeConfig) -> str | None:
    """The key that clients must send; None: there is none. Raises UserError where a package is missing, no header can
    carry the key, or other machines reach the server and there is none."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f'vargen serve needs {package}, which is not installed; run pip install "vargen[serve]"')
    key = os.environ.get(KEY) or None
    if key is None and not is_own_machine(config.host):
        raise UserError(f"host {config.host} lets other machines in; set a key for them in {KEY}, or use 127.0.0.1")
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise UserError(f"{KEY} must be printable ASCII without blanks at its ends: no client can send another key")
    return key


@dataclass(frozen=True)
class GenerationBody(Settings):
    """The body of a request: the fields of OpenAI's interface that an answer depends on."""

    prompt: str = option()
    """What to draw."""
    n: int = option(1, least=1, most=MOST_PICTURES)
    """Pictures."""
    size: str = option("auto")
    """In pixels: that of the model, or auto."""
    seed: int | None = option(None, least=0, most=MAX_SEED - MOST_PICTURES)
    """Seed of the first picture; the next has the next one. null: the server chooses."""
    response_format: str = option("b64_json", choices=("b64_json", "url"))
    """Where a picture stands; "url" is a data URL."""
    output_format: str = option("png", choices=("png", "jpeg", "webp"))
    """Format of the pictures."""
    output_compression: int = option(100, least=0, most=100)
    """Quality of jpeg and webp."""
    background: str = option("auto", choices=("auto", "opaque"))
    """What is behind the picture."""
    stream: bool = option(False)
    """Send events."""
    partial_images: int = option(0, least=0, most=MOST_PARTIAL)
    """Unfinished pictures on the way, in a stream."""
    method: str | None = None
    """One that the server allows; null for its own."""
    negative_prompt: str | None = None
    """What guidance leads away from. This and what follows are the server's own where they are null."""
    guidance_scale: float | None = option(None, **SAMPLING_BOUNDS["guidance_scale"])
    """How closely to follow the prompt."""
    temperature: float | None = option(None, **SAMPLING_BOUNDS["temperature"])
    """Below 1 for more likely pictures."""
    top_k: int | None = option(None, **SAMPLING_BOUNDS["top_k"])
    """Choose among so many likeliest tokens."""
    top_p: float | None = option(None, **SAMPLING_BOUNDS["top_p"])
    """Choose among the likeliest tokens that together have this probability."""

    @classmethod
    def read(cls, body: Any, image_size: int, can_show: bool, methods: Collection[str] = ()) -> GenerationBody:
        """The request in a body.

        Args:
            body: as JSON. A field that is null is not given.
            image_size: side of the model's pictures.
            can_show: whether unfinished pictures can be shown.
            methods: that may be named.

        Raises:
            UserError: a field that cannot be served or is not known, by name.
        """
        if not isinstance(body, dict):
            raise UserError("body must be a JSON object with a prompt")
        given = {name: value for name, value in body.items() if value is not None}
        known = (*options_of(cls), *WITHOUT_EFFECT)
        for name in given:
            if name not in known:
                raise UserError(f"{name!r:.40} is no field of this server{did_you_mean(name, known)}; leave it out")
        prompt = given.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise UserError("prompt must be a text that describes the picture")
        check_text("prompt", prompt)
        given["prompt"] = prompt.strip()
        sizes = ("auto", f"{image_size}x{image_size}")
        if given.get("size", "auto") not in sizes:
            raise UserError(f"size must be {sizes[1]}, the only one of this model, or auto, got {given['size']!r:.40}")
        made = cls(**{name: given[name] for name in options_of(cls) if name in given})
        check_text("negative_prompt", made.negative_prompt or "")
        if made.method is not None and not methods:
            told = "method cannot be chosen: whoever runs the server names those that may be, as allowed_methods"
            raise UserError(told)
        if made.method is not None:
            check_choice("method", made.method, methods)
        if made.stream and made.n > 1:
            raise UserError(f"n must be 1 where stream is true, got {made.n}")
        if made.partial_images and not made.stream:
            raise UserError("partial_images needs stream true")
        if made.partial_images and not can_show:
            raise UserError("partial_images must be 0: this family cannot show unfinished pictures")
        return made

    def arguments(self, methods: Mapping[str, ImageMethodConfig]) -> dict[str, Any]:
        """Those of the pipeline's call that differ from the server's own."""
        names = ("negative_prompt", "guidance_scale", "temperature", "top_k", "top_p")
        asked = {name: value for name in names if (value := getattr(self, name)) is not None}
        return asked if self.method is None else {**asked, "method": methods[self.method]}

    def encoded(self, picture: Image) -> str:
        """A picture in the format that is asked for, in base64."""
        buffer = io.BytesIO()
        picture.save(buffer, self.output_format, quality=self.output_compression)
        return base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class EditBody(GenerationBody):
    """The fields of a request to edit a picture, beside the picture and its mask."""

    start_rows: int | None = option(None, least=1, most=MAX_PIXELS)
    """Instead of a mask: so many first rows of codes stay."""
    paste_back: bool = option(True)
    """Give the picture's own pixels where nothing is drawn."""


def build_app(
    engine: Engine,
    model: str,
    key: str | None = None,
    first_seed: int = 0,
    methods: Mapping[str, ImageMethodConfig] | None = None,
) -> Any:
    """The application, whose `state.engine` is the engine.

    Args:
        engine: draws. It is closed when the application ends.
        model: its name.
        key: that clients must send; None: anybody on this machine may ask.
        first_seed: of the first picture for which a request gives none.
        methods: that a request may name; None: none.
    """
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route

    pipeline = engine.pipeline
    image_size, can_show = pipeline.image_size, isinstance(getattr(pipeline, "grid_size", None), int)
    seeds, methods = itertools.count(first_seed), methods or {}
    metrics = Metrics(engine)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    def refused(status: int, message: str, kind: str = "invalid_request_error") -> Any:
        param = message.split()[0].strip("':") if status == 400 else None
        return JSONResponse(_error(message, kind, param), status)

    def not_allowed(request: Request) -> Any:
        """The answer to who may not ask; None: it may."""
        path = request.scope["path"]  # that of `request.url` is also made of the Host
        if path == HEALTH:
            return None
        if key is None:
            # A page in a browser here, whose name leads to this address, or that sends what it cannot read.
            if (named := foreign_host(request.headers.raw)) is not None:
                needed = "Host must name this machine where no key is set, such as 127.0.0.1"
                return refused(403, f"{needed}, got {named!r:.40}")
            if (page := foreign_page(request.method, request.headers.raw)) is not None:
                return refused(403, f"Origin must be this machine where no key is set, got {page!r:.40}")
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        is_right = scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), (key or "").encode())
        if key is not None and not is_right:
            answer = refused(401, "the key is missing or wrong; send it as `Authorization: Bearer KEY`")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        wanted = _KINDS.get(path, "")
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if wanted and request.method == "POST" and kind != wanted:
            return refused(415, f"Content-Type must be {wanted}, got {kind!r:.40}")
        return None

    class Door:
        """Asks before anything else answers, counts every answer, and gives up the pictures of a request that ends."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return await self.app(scope, receive, send)
            started = False

            async def counted(message: Any) -> None:
                nonlocal started
                if message["type"] == "http.response.start":
                    started = True
                    if message["status"] >= 400 or scope["path"] in _KINDS:
                        metrics.requests.labels(str(message["status"])).inc()
                await send(message)

            jobs = scope.setdefault("state", {})["jobs"] = list[Job]()
            try:
                answer = not_allowed(Request(scope))
                await (self.app if answer is None else answer)(scope, receive, counted)
            except asyncio.CancelledError:  # a second signal: nothing is waited for any more
                if not started:
                    await refused(503, "the server was ended", "server_error")(scope, receive, counted)
            finally:
                for job in jobs:
                    job.finished.cancel()

    held = 0  # bytes of requests that are read

    @asynccontextmanager
    async def body_of(request: Request, most: int, remedy: str) -> AsyncIterator[bytes]:
        """All bytes of a request, within what a server has room for."""
        nonlocal held
        content = bytearray()
        try:
            async for part in request.stream():
                content += part
                held += len(part)
                if len(content) > most:
                    raise TooLarge(f"the request has more than {most:,} bytes; send a {remedy}")
                if held > MAX_READ:
                    raise QueueFull("too many clients send pictures at once; try again later")
            yield bytes(content)
        except ClientDisconnect:
            raise ClientLeft("the client left before it had sent its request") from None
        finally:
            held -= len(content)

    async def generation_of(request: Request) -> tuple[GenerationBody, dict[str, Any]]:
        async with body_of(request, MAX_BODY, "shorter prompt") as content:
            try:  # around this alone: errors about a body's length are ValueErrors, too
                asked = parse_json(content)
            except RepeatedKeyError as error:
                raise UserError(f"body: {error}; send each key once") from None
            except (ValueError, RecursionError):
                raise UserError("body must be JSON") from None
        return GenerationBody.read(asked, image_size, can_show, methods), {}

    async def edit_of(request: Request) -> tuple[GenerationBody, dict[str, Any]]:
        async with body_of(request, MAX_FORM, "smaller picture") as content:
            fields, sent = read_form(request.headers["content-type"], content)
            asked = EditBody.read(fields, image_size, can_show, methods)
            assert isinstance(asked, EditBody)
            about = sent, asked.start_rows is not None, pipeline.reads_references
            pictures = await asyncio.to_thread(open_edited, *about)
        if "reference_images" in pictures:
            return asked, {**pictures, "height": image_size, "width": image_size}
        return asked, {**pictures, "start_rows": asked.start_rows, "paste_back": asked.paste_back}

    async def answered(request: Request, read: Callable[..., Any]) -> Any:
        began = time.perf_counter()
        try:
            asked, about = await read(request)
            arguments = {**asked.arguments(methods), **about}
            first = next(seeds) if asked.seed is None else asked.seed
            drawn = range(first, first + asked.n)
            jobs = [Job(asked.prompt, seed, asked.partial_images, arguments=arguments) for seed in drawn]
            for _ in jobs[1:] if asked.seed is None else ():
                next(seeds)
            events = _events(jobs[0], image_size, asked) if asked.stream else None
            engine.submit(jobs)
            request.state.jobs += jobs
            if events is not None:
                return StreamingResponse(events, media_type="text/event-stream")
            pictures = await _drawn(jobs, request)
        except Exception as error:
            status, kind = next(answer for cause, answer in _STATUS.items() if isinstance(error, cause))
            answer = refused(status, str(error) or type(error).__name__, kind)
            if status == 429:
                answer.headers["Retry-After"] = "1"
            return answer
        metrics.seconds.observe(time.perf_counter() - began)
        prefix = f"data:image/{asked.output_format};base64," if asked.response_format == "url" else ""
        data = [
            {asked.response_format: prefix + asked.encoded(picture), "seed": job.seed}
            for picture, job in zip(pictures, jobs, strict=True)
        ]
        size = f"{image_size}x{image_size}"
        answer = {"created": int(time.time()), "data": data, "size": size, "output_format": asked.output_format}
        return JSONResponse({**answer, "warnings": jobs[0].warnings} if jobs[0].warnings else answer)

    own = {"id": model, "object": "model", "created": 0, "owned_by": "vargen"}

    async def models(request: Request) -> Any:
        return JSONResponse({"object": "list", "data": [own]})

    async def one_model(request: Request) -> Any:
        named = request.path_params["id"]
        return JSONResponse(own) if named == model else refused(404, f"{named!r:.80} is no model here; {model} is")

    async def health(request: Request) -> Any:
        state = {"status": "ok" if engine.alive else "stopped", "waiting": engine.waiting, "drawing": engine.drawing}
        return JSONResponse(state, 200 if engine.alive else 503)

    async def measured(request: Request) -> Any:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def not_routed(request: Request, error: Any) -> Any:
        if error.status_code == 404:
            places = ", ".join(route.path for route in routes)
            return refused(404, f"{request.scope['path']!r:.80} is no place of this server; it has {places}")
        allowed = (error.headers or {})["Allow"]
        answer = refused(405, f"{request.method:.40} is no method of {request.scope['path']}; use {allowed}")
        answer.headers["Allow"] = allowed
        return answer

    routes = [
        Route(PLACE, partial(answered, read=generation_of), methods=["POST"]),
        Route(EDITS, partial(answered, read=edit_of), methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{id:path}", one_model),
        Route(HEALTH, health),
        Route("/metrics", measured),
    ]
    app = Starlette(
        routes=routes, middleware=[Middleware(Door)], lifespan=lifespan, exception_handlers={HTTPException: not_routed}
    )
    app.router.redirect_slashes = False
    app.state.engine = engine
    return app


async def _drawn(jobs: Sequence[Job], request: Request) -> list[Image]:
    """The pictures of jobs that were submitted. Raises ClientLeft, or the error of a job."""

    async def leaves() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def draws() -> list[Image]:
        return await asyncio.gather(*(asyncio.wrap_future(job.finished) for job in jobs))

    leaving, drawing = asyncio.create_task(leaves()), asyncio.create_task(draws())
    try:
        await asyncio.wait((leaving, drawing), return_when=asyncio.FIRST_COMPLETED)
        if not drawing.done():
            raise ClientLeft("the client left before its pictures were drawn")
        return drawing.result()
    finally:
        leaving.cancel()
        drawing.cancel()


def _events(job: Job, image_size: int, asked: GenerationBody) -> AsyncIterator[str]:
    """The events of one streamed picture, by the names that OpenAI's client knows, as lines of server-sent events."""
    happened: asyncio.Queue[tuple[str, Any, int]] = asyncio.Queue()
    loop, about = asyncio.get_running_loop(), "image_edit" if isinstance(asked, EditBody) else "image_generation"

    def put(kind: str, value: Any, number: int = 0) -> None:
        loop.call_soon_threadsafe(happened.put_nowait, (f"{about}.{kind}", value, number))

    job.on_partial = lambda picture, number: put("partial_image", picture, number)
    job.finished.add_done_callback(lambda future: put("completed", future))

    async def sent() -> AsyncIterator[str]:
        ends = False
        while not ends:
            kind, value, number = await happened.get()
            ends = kind.endswith(".completed")
            event: dict[str, Any] = {"type": kind, "created_at": int(time.time()), "size": f"{image_size}x{image_size}"}
            event |= {"quality": "auto", "background": "opaque", "output_format": asked.output_format, "seed": job.seed}
            if ends and value.exception() is not None:
                event = _error(str(value.exception()), "server_error")
            elif ends:
                usage: dict[str, Any] = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
                usage["input_tokens_details"] = {"image_tokens": 0, "text_tokens": 0}
                event |= {"b64_json": asked.encoded(value.result()), "usage": usage}
            else:
                event |= {"b64_json": asked.encoded(value), "partial_image_index": number}
            yield f"event: {kind}\ndata: {json.dumps(event)}\n\n"

    return sent()


def _error(message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's client reads it."""
    return {"error": {"message": " ".join(message.split()), "type": kind, "param": param, "code": None}}


class Metrics:
    """What Prometheus reads: counts of requests by status, the queue, and what drawing costs; `text` is its format."""

    def __init__(self, engine: Engine) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

        self._registry = CollectorRegistry()
        about: dict[str, Any] = {"registry": self._registry}
        self.requests = Counter("vargen_requests", "Requests, by status", ["status"], **about)
        told, buckets = "Seconds from a request to its pictures", (0.1, 0.3, 1, 3, 10, 30, 100)
        self.seconds = Histogram("vargen_request_seconds", told, buckets=buckets, **about)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "vargen_waiting_pictures": ("Pictures that wait", lambda: engine.waiting),
            "vargen_drawing_pictures": ("Pictures that are drawn", lambda: engine.drawing),
            "vargen_alive": ("1 while pictures are drawn", lambda: engine.alive),
            "vargen_pictures": ("Pictures drawn so far", lambda: engine.totals.pictures),
            "vargen_failed_pictures": ("Pictures that failed", lambda: engine.totals.failures),
            "vargen_tokens": ("Tokens drawn so far", lambda: engine.totals.tokens),
            "vargen_passes": ("Forward passes, added up over pictures", lambda: engine.totals.row_passes),
            "vargen_tokens_per_pass": (
                "Tokens that a picture gains by a pass, which is acceptance and the token behind it",
                lambda: engine.totals.tokens / max(engine.totals.row_passes, 1),
            ),
            "vargen_drawing_seconds": ("Seconds of drawing so far", lambda: engine.totals.seconds),
        }
        for name, (description, value) in gauges.items():
            Gauge(name, description, **about).set_function(value)

        self.text: Callable[[], bytes] = partial(generate_latest, self._registry)


def check_port(host: str, port: int) -> None:
    """Refuse a place where no server can listen, before a model is loaded. Raises UserError."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except (OSError, OverflowError) as error:
        reason = reason_of(error)
        raise UserError(f"port {port} of {host} cannot be used ({reason}); choose another with --port") from error


def serve(config: ServeConfig, quiet: bool = False) -> None:
    """Load the model, and serve it until an interrupt or SIGTERM, after which the requests that run are finished.

    Args:
        config: what, and to whom.
        quiet: say nothing but the address.

    Raises:
        UserError: the model cannot be loaded or served, a package is missing, or others may come in without a key.
    """
    key = check_serving(config)
    check_port(config.host, config.port)
    import uvicorn

    app, name = open_app(config, key)
    # uvicorn finishes what runs, then sends itself the signal again. That it was asked to end is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"vargen: {name} at http://{config.host}:{config.port}/v1", flush=True)
    on_cpu = app.state.engine.pipeline.device.type == "cpu"
    if not quiet and on_cpu and config.method == "jacobi" and config.batch_size > 1:
        print(f"vargen: {IN_BATCHES}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=config.host, port=config.port, log_level="warning", http=bounded_protocol(), ws="none")


def open_app(config: ServeConfig, key: str | None) -> tuple[Any, str]:
    """The application of a model that is loaded here, and the model's name.

    Args:
        config: host and port are for others.
        key: see `build_app`.

    Raises:
        UserError: the model cannot be loaded or served.
    """
    from vargen.models.description import open_model
    from vargen.pipelines.loading import load_pipeline

    model = open_model(config)
    if model.num_classes is not None or model.family == "glm_image":
        raise UserError(f"model: {model.name} cannot be served: it must draw prompts, as a stream; use vargen generate")
    method = model.resolve_method(config.method, config.method_options)
    allowed = config.allowed_methods
    methods = {} if allowed is None else read_method_list(allowed, {}, "allowed_methods", model.resolve_method)
    pipeline, _, _ = load_pipeline(model, config)
    sampling = {name: value for name, value in config.sampling.items() if value is not None}
    engine = Engine(pipeline, {"method": method, **sampling}, config.batch_size, config.queue)
    return build_app(engine, model.name, key, config.seed, methods), model.name
