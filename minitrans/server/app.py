"""LibreTranslate's API for translators: what a request may ask for, how it is answered, and what is refused."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qs, urlencode

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minitrans.errors import UserError
from minitrans.explain import explain
from minitrans.pages.render import render_template
from minitrans.server.queue import BatchFunction, RequestQueue
from minitrans.server.split_html import split_html
from minitrans.text.lines import base_language
from minitrans.text.reading import clean, split_lowercase_words
from minitrans.translate.translator import Translation, Translator

MAX_EXPLAINED_SENTENCES = 5  # sentences of a text whose figures are drawn: one takes as long as dozens of translations
LANGUAGE_NAMES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian"} | {
    "ja": "Japanese", "ko": "Korean", "pt": "Portuguese", "ru": "Russian", "vi": "Vietnamese", "zh": "Chinese"
}  # fmt: skip
SPEC = yaml.safe_load(Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8"))
# Headers of every response that does not set them itself.
DEFAULT_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
DEFAULT_HEADERS |= {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'self'"}
# A page states the rest of its policy itself; browsers obey frame-ancestors only in a header.
PAGE_HEADERS = {"Content-Security-Policy": "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"}


class Api:
    """An ASGI application; errors are answered with {"error": "..."}.

    The limits are the characters of a request, a client's requests in a minute (0: no limit), and requests that wait.
    Scripts of the sites `origins` may send requests from a browser; `*` is any site.
    """

    def __init__(
        self,
        translators: Sequence[Translator],
        char_limit: int,
        rate_limit: int,
        most_waiting: int,
        origins: Sequence[str] = (),
    ) -> None:
        self._translators = {(each.bundle.source, each.bundle.target): each for each in translators}
        self._char_limit, self._rate_limit = char_limit, rate_limit
        self._minute, self._clients = 0, Counter[str]()
        self._counts = defaultdict[str, float](int)  # since the start, by Prometheus' names
        self._queue = RequestQueue(most_waiting)
        routes = [
            Route("/", self._page),
            Route("/translate", self._translate, methods=["POST"]),
            Route("/detect", self._detect, methods=["POST"]),
            Route("/languages", self._languages),
            Route("/frontend/settings", self._settings),
            Route("/spec", lambda _: JSONResponse(SPEC)),
            Route("/explain", self._explain),
            Route("/health", lambda _: JSONResponse({"status": "ok"})),
            Route("/metrics", self._metrics),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
        ]
        answers: dict[Any, Any] = {
            HTTPException: lambda _, error: JSONResponse({"error": error.detail}, error.status_code, error.headers),
            UserError: lambda _, error: JSONResponse({"error": str(error)}, 400),
            asyncio.QueueFull: lambda _, error: JSONResponse({"error": str(error)}, 429),
            ClientDisconnect: lambda _, __: Response(status_code=499),  # nobody receives it, but it is counted
            Exception: lambda _, __: JSONResponse({"error": "the server failed on this; its log says why"}, 500),
        }
        app = Starlette(routes=routes, exception_handlers=answers, lifespan=self._queue_lifespan)
        app.router.redirect_slashes = False  # to an address that a proxy's client cannot reach
        self._app: ASGIApp = app
        if origins:
            self._app = CORSMiddleware(self._app, allow_origins=origins, allow_methods=["GET", "POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it; the answer gets those of `DEFAULT_HEADERS` that it does not set itself."""
        start = time.perf_counter()
        if "path" in scope:  # a client behind a proxy may send a whole address
            scope["path"] = re.sub("(?i)^https?://[^/]*/?", "/", scope["path"])

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts[f'minitrans_requests_total{{status="{message["status"]}"}}'] += 1
                if (scope["method"], scope["path"]) == ("POST", "/translate"):
                    self._counts["minitrans_translate_seconds_count"] += 1
                    self._counts["minitrans_translate_seconds_sum"] += time.perf_counter() - start
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULT_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, answer)

    def serve(self, listening: socket.socket) -> None:
        """Serve until SIGTERM, SIGHUP or Ctrl-C; then answer the requests already accepted, for up to half a minute."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # of these, uvicorn handles only the other two
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        config = uvicorn.Config(
            self,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=500,  # connections; while there are 500, each request is answered 503
            timeout_graceful_shutdown=30,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listening])

    async def _translate(self, request: Request) -> Response:
        params = await self._params_within_limits(request)
        texts = _required_texts(params)
        source, target = _required_text(params, "source"), _required_text(params, "target")
        form = params.get("format") or "text"
        if form not in ("text", "html"):
            _refuse(f"{clean(str(form)):.40} format is not supported")
        # Each line, or each text in HTML, is translated by itself. These have odd indices; the pieces between stay.
        split = [split_html(text) if form == "html" else ["", *re.split("(\r?\n)", text), ""] for text in texts]
        lines = [line for pieces in split for line in pieces[1::2]]
        detected = self._detected_languages("\n".join(lines), target)[:1] if source == "auto" else []
        translator = self._find_translator(detected[0]["language"] if detected else source, target)
        doubting = str(params.get("unsure") or 0).lower() not in ("0", "false")  # ours: LibreTranslate has no "unsure"
        translated: Iterable[Any] = [Translation(line, 0.0) for line in lines] if doubting else lines
        if translator:
            work: BatchFunction = translator.translations if doubting else translator.translate
            translated = await self._queued_results(request, translator, work, lines)
        translations = iter(translated)
        self._counts["minitrans_lines_total"] += len(lines)
        answer = defaultdict[str, list[Any]](list)
        for pieces in split:
            mine = [*islice(translations, len(pieces) // 2)]
            if doubting:
                answer["unsure"].append(any(each.unsure for each in mine))
                answer["unknown"].append([*dict.fromkeys(word for each in mine for word in each.unknown_words)])
                mine = [each.text for each in mine]
            pieces[1::2] = (escape(each, quote=False) for each in mine) if form == "html" else mine
            answer["translatedText"].append("".join(pieces))
        if detected:
            answer["detectedLanguage"] = detected * len(texts)
        if not isinstance(params["q"], list):
            return JSONResponse({name: of_text for name, (of_text,) in answer.items()})
        return JSONResponse(answer)

    async def _detect(self, request: Request) -> Response:
        texts = _required_texts(await self._params_within_limits(request))
        return JSONResponse(self._detected_languages("\n".join(texts)))

    async def _languages(self, _: Request) -> Response:
        codes = sorted({code for pair in self._translators for code in pair})
        targets = {code: [target for source, target in self._translators if source == code] for code in codes}
        return JSONResponse([{**_language_entry(code), "targets": targets[code]} for code in codes])

    async def _settings(self, _: Request) -> Response:
        source, target = map(_language_entry, next(iter(self._translators)))
        lacking = dict.fromkeys(("apiKeys", "keyRequired", "suggestions", "filesTranslation"), False)
        limits = {"charLimit": self._char_limit, "frontendTimeout": 500, "supportedFilesFormat": []}
        return JSONResponse({**limits, **lacking, "language": {"source": source, "target": target}})

    async def _page(self, _: Request) -> Response:
        given = {"pairs": [*self._translators], "char_limit": self._char_limit, "explained": MAX_EXPLAINED_SENTENCES}
        headers = PAGE_HEADERS | {"Cache-Control": "no-cache"}  # Firefox forgets a text typed on a page of "no-store"
        return HTMLResponse(render_template("serve.html", **given), headers=headers)

    async def _explain(self, request: Request) -> Response:
        """The page of `minitrans explain` for the first sentences of a text, or of several."""
        params = await self._params_within_limits(request)
        text = "\n".join(_required_texts(params))
        translator = self._find_translator(_required_text(params, "source"), _required_text(params, "target"))
        if translator is None:
            _refuse("source and target are one language; give two")
        lines = [line for line in text.split("\n") if any(map(str.isalnum, line))][:MAX_EXPLAINED_SENTENCES] or [text]

        def draw_pages(lines: Sequence[str]) -> list[str]:  # new for each request, so pages are drawn one by one
            return [explain(translator, lines, MAX_EXPLAINED_SENTENCES).html] * len(lines)

        (html, *_) = await self._queued_results(request, translator, draw_pages, lines)
        return HTMLResponse(html, headers=PAGE_HEADERS)

    async def _metrics(self, _: Request) -> Response:
        counts = {**self._counts, "minitrans_waiting_requests": len(self._queue.list_waiting_requests())}
        text = "".join(f"{name} {value}\n" for name, value in sorted(counts.items()))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @contextlib.asynccontextmanager
    async def _queue_lifespan(self, _: Starlette) -> AsyncIterator[None]:
        working = asyncio.create_task(self._queue.run())
        yield
        working.cancel()

    async def _params_within_limits(self, request: Request) -> dict[str, Any]:
        """A request's parameters, from JSON, a form or the URL. One request too many, or one too long, is refused."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._clients = minute, Counter()
        client = request.client.host if request.client else ""
        self._clients[client] += 1
        if 0 < self._rate_limit < self._clients[client]:
            _refuse(f"more than {self._rate_limit} requests in a minute; ask again in the next", 429)
        params = await self._parse_body(request)
        q = params.get("q") or ""
        texts = q if isinstance(q, list) else [q]
        if not all(isinstance(text, str) for text in texts):
            _refuse("q is not text; give a text, or a list of texts")
        if (n := len("\n".join(texts))) > self._char_limit:
            _refuse(f"q has {n} characters, the limit is {self._char_limit}; send less at once")
        return params

    async def _parse_body(self, request: Request) -> dict[str, Any]:
        body, most = bytearray(), 12 * self._char_limit + 10_000  # bytes; an escaped character may take twelve
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                _refuse(f"the request has more than {most} bytes; send less at once", 413)

        async def once() -> AsyncGenerator[bytes]:
            yield bytes(body)

        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        try:
            if kind.endswith("json"):
                text = json.dumps(json.loads(body), ensure_ascii=False)
                parsed = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", text))  # no lone surrogates
            else:
                form = body.decode()
                if kind == "multipart/form-data":
                    parser = MultiPartParser(request.headers, once(), max_files=0, max_part_size=most)
                    form = urlencode((await parser.parse()).multi_items())
                form = f"{request.scope['query_string'].decode()}&{form}"
                fields = parse_qs(form, keep_blank_values=True, max_num_fields=1000)
                parsed = {name: values if values[1:] else values[0] for name, values in fields.items()}
        except (MultiPartException, ValueError, RecursionError) as error:
            _refuse(f"the body cannot be read ({error}); send a form or a JSON object")
        return parsed if isinstance(parsed, dict) else _refuse("the body is neither a form nor a JSON object; send one")

    def _find_translator(self, source: str, target: str) -> Translator | None:
        """The run that translates between these languages; None if they are one, which is left as it is."""
        for form in (str.lower, _normalize_language):  # exactly this code, or else the same language
            for pair, translator in self._translators.items():
                if (form(source), form(target)) == (*map(form, pair),):
                    return translator
        known = {_normalize_language(code) for pair in self._translators for code in pair}
        for code in (source, target):
            if _normalize_language(code) not in known:
                _refuse(f"{clean(code):.40} is not supported")
        if _normalize_language(source) != _normalize_language(target):
            _refuse(f"{target} is not available as a target language from {source}")
        return None

    def _detected_languages(self, text: str, target: str = "") -> list[dict[str, Any]]:
        """Each source language, with the percentage of the text's words that its run knows; 0 without a word list.

        Of those with one percentage, the ones that are translated to `target` come first.
        """
        tokens, shares, goal = split_lowercase_words(text), Counter[str](), _normalize_language(target)
        for source, to in sorted(self._translators, key=lambda pair: _normalize_language(pair[1]) != goal):
            known = self._translators[source, to].bundle.source_words or ()
            shares[source] = max(shares[source], 100 * sum(word in known for word in tokens) // max(1, len(tokens)))
        return [{"confidence": confidence, "language": code} for code, confidence in shares.most_common()]

    async def _queued_results(
        self, request: Request, translator: Translator, work: BatchFunction, lines: Sequence[str]
    ) -> Sequence[Any]:
        """Queue some work, and wait for its results; the work is dropped if the client disconnects first."""
        most = translator.bundle.model.config.max_len - 1
        lengths = await asyncio.to_thread(lambda: [*map(translator.longest_sentence_length, lines)])  # it takes a while
        for line, n in zip(lines, lengths, strict=True):
            if n > most:  # it would be cut
                _refuse(f"{clean(line)[:40]!r}... has a sentence of {n} pieces, the model takes {most}; shorten it")
        answer = self._queue.put(work, lines)
        gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())  # after the body, only a disconnect comes
        try:
            await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientDisconnect
            return answer.result()
        finally:
            gone.cancel()
            answer.cancel()


def _refuse(message: str, status: int = 400) -> NoReturn:
    raise HTTPException(status, message)


def _required_texts(params: Any) -> list[str]:
    """The texts of `q`, which may be one or a list of them."""
    q = params.get("q") or _refuse("Invalid request: missing q parameter")
    return q if isinstance(q, list) else [q]


def _required_text(params: Any, name: str) -> str:
    """A parameter that has to be given, as text."""
    value = params.get(name)
    return value if value and isinstance(value, str) else _refuse(f"Invalid request: missing {name} parameter")


def _language_entry(code: str) -> dict[str, Any]:
    return {"code": code, "name": LANGUAGE_NAMES.get(_normalize_language(code), code)}


def _normalize_language(code: str) -> str:
    """The language of a code such as `EN`, `en-US` or `zh_Hans`; traditional Chinese counts as its own language."""
    base = base_language(code)
    return "zh-hant" if base == "zh" and re.match("(?i)[a-z]+[-_](hant|tw|hk|mo)", code) else base
