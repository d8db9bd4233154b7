"""The server as its clients meet it: LibreTranslate's API, its errors, its limits, a process, a browser."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest
from bench_serve import ServerProcess, filter_wrong_replies, main, run_clients, running_server, table_row
from browser import needs_browser, open_page_and_record_events, visit
from command_helpers import refusal_message, run_cli
from libretranslatepy import LibreTranslateAPI
from starlette.testclient import TestClient

from minitrans.cli.serve import open_socket
from minitrans.errors import UserError
from minitrans.server.app import Api
from minitrans.text.reading import Reader
from minitrans.translate.translator import Translator

EN_ZH_PARAMETERS = {"source": "en", "target": "zh"}
JSON_HEADERS = {"Content-Type": "Application/JSON; charset=utf-8"}
CONTENT_TYPES = "application/json", "application/x-www-form-urlencoded", "multipart/form-data", ""  # the last: the URL
LINES = ["I love you.", "", "Machine learning is fun.", "The axolotl is asleep."]


def request_arguments(kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which a test client sends parameters in a body of this kind."""
    if kind == "multipart/form-data":
        texts = {name: value if isinstance(value, list) else [value] for name, value in parameters.items()}
        return {"files": [(name, (None, text)) for name in texts for text in texts[name]]}
    return {{"application/json": "json", "": "params"}.get(kind, "data"): parameters}


def asgi_response_statuses(api: Any, *messages: dict[str, Any]) -> list[Any]:
    """The status in each answer to a client that sends these messages to /translate."""
    left, answered = iter(messages), list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", **next(left)}

    async def send(message: Any) -> None:
        answered.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [], "query_string": b""}
    asyncio.run(asyncio.wait_for(api(scope, receive, send), 20))
    return answered


@pytest.fixture
def client(translator: Translator) -> Iterator[TestClient]:
    with TestClient(Api([translator], 300, 0, 9), raise_server_exceptions=False) as client:
        yield client


# -- the API --------------------------------------------------------------------------------------------------------


def test_every_kind_of_body_is_translated_as_by_translate(client: TestClient, translator: Translator) -> None:
    right, start = translator.translate(LINES), time.perf_counter()
    uneven = [["\n".join([*lines[2:], ""]), *lines[:2]] for lines in (LINES, right)]
    for q, translated in ((LINES, right), ("\r\n".join(LINES), "\r\n".join(right)), uneven):
        question = {"q": q, **EN_ZH_PARAMETERS, "format": "text"}
        for kind in CONTENT_TYPES:
            answer = client.post("/translate", **request_arguments(kind, question))
            assert (answer.status_code, answer.json()) == (200, {"translatedText": translated})
    response = client.post("/translate", json={"q": [LINES[0], LINES[0] + "\n"], "source": "auto", "target": "zh"})
    detected = [{"confidence": 100, "language": "en"}]
    assert response.json() == {"translatedText": [right[0], right[0] + "\n"], "detectedLanguage": detected * 2}
    assert client.post("/detect", data={"q": "I love axolotls."}).json() == [{"confidence": 66, "language": "en"}]
    assert client.get("/translate").status_code == 405  # no translation
    counts = client.get("/metrics").text
    seconds = float(re.findall(r"^minitrans_translate_seconds_sum (\S+)$", counts, re.M)[0])
    assert 0 < seconds <= time.perf_counter() - start
    assert 'minitrans_requests_total{status="200"} 14\n' in counts
    assert "minitrans_translate_seconds_count 13\n" in counts
    assert "minitrans_waiting_requests 0\n" in counts
    assert client.post("/detect", json={"q": ["I love", "axolotls."]}).json()[0]["confidence"] == 66
    assert f"minitrans_lines_total {4 * (2 * len(LINES) + 5) + 3}\n" in counts


def test_paragraphs_are_translated_sentence_by_sentence(translator: Translator, tiny_run: Path) -> None:
    """Each sentence of a line is translated by itself; lines stay lines."""
    sentences = ["“Good morning.”", "How are you?", "I am fine.", "Thank you very much."] * 10  # as one, too long
    lines = [" ".join(sentences), "", "I love you."]
    splitting = Translator(translator.bundle)
    splitting.split_sentences = True
    with TestClient(Api([splitting], 5000, 0, 9)) as server:
        answer = server.post("/translate", json={"q": "\n".join(lines), **EN_ZH_PARAMETERS})
    translated = answer.json()["translatedText"]
    want = ["".join(translator.translate([*each])).replace(" ", "") for each in (sentences, [""], ["I love you."])]
    assert translated.replace(" ", "").split("\n") == want
    assert run_cli("translate", tiny_run, "--split-sentences", stdin="\n".join(lines).encode())[1] == translated + "\n"
    assert run_cli("translate", tiny_run, stdin="\n".join(lines).encode())[1] != translated + "\n"


def test_unsure_translations_are_marked_on_request(client: TestClient, translator: Translator) -> None:
    question = {"q": ["\n".join(["", *LINES, LINES[3]]), "", LINES[0]], **EN_ZH_PARAMETERS}  # blank is never unsure
    answer = client.post("/translate", json={**question, "unsure": True}).json()
    assert answer.pop("unsure") == [True, False, translator.translations(LINES)[0].unsure]
    assert answer.pop("unknown") == [["axolotl", "asleep"], [], []]
    assert answer == client.post("/translate", json=question).json()
    for no in ({"data": {**question, "unsure": "False"}}, {"json": {**question, "unsure": None}}):
        assert answer == client.post("/translate", **no).json()


def test_the_text_of_html_is_translated(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Translator, "translate", lambda _, lines: [f"<{line}>" if line else "" for line in lines])
    question = {"q": ["<p>I &amp; you</p>", "a\nb", "<hr>"], **EN_ZH_PARAMETERS, "format": "html"}
    answer = client.post("/translate", json={**question, "source": "auto"}).json()
    assert answer["translatedText"] == ["<p>&lt;I &amp; you&gt;</p>", "&lt;a\nb&gt;", "<hr>"]
    assert answer["detectedLanguage"][0]["confidence"] == 75  # b is unknown, and p no word
    half = json.dumps({**question, "q": "<b title='\ud83d'>a</b>"})  # as JavaScript's slice leaves an emoji
    answer = client.post("/translate", content=half, headers=JSON_HEADERS)
    assert answer.json() == {"translatedText": "<b title='\ufffd'>&lt;a&gt;</b>"}


def test_the_openapi_description_is_correct(client: TestClient) -> None:
    """Each described path takes its parameters in each kind of body, and no other method."""
    example = {"q": "I love you.", **EN_ZH_PARAMETERS, "format": "text", "unsure": "true"}
    assert not re.search(r'"type":\s*"array"(?!,\s*"items")', client.get("/spec").text)  # as OpenAPI asks
    for path, operations in client.get("/spec").json()["paths"].items():
        ((method, operation),) = operations.items()
        assert client.request({"get": "POST", "post": "GET"}[method], path).status_code == 405
        said = operation["responses"]["200"]["content"]["application/json"]["schema"]
        for kind, body in operation.get("requestBody", {"content": {"": {}}})["content"].items():
            params = {name: example[name] for name in body.get("schema", {"properties": ()})["properties"]}
            answer = client.request(method, path, **request_arguments(kind, params))
            assert (answer.status_code, type(answer.json())) == (200, {"array": list, "object": dict}[said["type"]])
            (first, *_) = answer.json() if said["type"] == "array" else [answer.json()]
            assert first.keys() <= said.get("items", said).get("properties", first).keys()
            for name in body.get("schema", {"required": ()})["required"]:
                left = {each: params[each] for each in params if each != name}
                answer = client.request(method, path, **request_arguments(kind, left))
                missing = 400, {"error": f"Invalid request: missing {name} parameter"}
                assert (answer.status_code, answer.json()) == missing


def test_language_codes_match_exactly_or_else_by_language(translator: Translator) -> None:
    british = Translator(replace(translator.bundle, source="en-GB"))
    with TestClient(Api([translator, british], 300, 0, 9)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", lambda self, lines: [self.bundle.source for _ in lines])
        exact = ("en", "zh", "en"), ("en-GB", "zh", "en-GB"), ("EN-gb", "ZH", "en-GB")
        others = [("en-US", target, "en") for target in ("zh", "ZH", "zh-CN", "zh_CN", "zho_Hans", "zh-Hans-CN")]
        for source, target, taken in (*exact, *others):
            answer = server.post("/translate", json={"q": "a", "source": source, "target": target})
            assert answer.json() == {"translatedText": taken}
        assert {each["name"] for each in server.get("/languages").json()} == {"English", "Chinese"}


def test_the_detected_language_is_that_of_the_run_that_knows_most_words(translator: Translator) -> None:
    german = replace(translator.bundle, source="de", source_words={"ich": 0, "liebe": 1, "dich": 2})
    wordless = replace(translator.bundle, target="fr", source_words=None)
    api = Api([translator, Translator(german), Translator(wordless)], 300, 0, 9)
    with TestClient(api) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", lambda self, lines: [self.bundle.source for _ in lines])
        detected = server.post("/detect", json={"q": "Ich liebe sie"}).json()
        assert detected == [{"confidence": 66, "language": "de"}, {"confidence": 0, "language": "en"}]
        answer = server.post("/translate", json={"q": "Ich liebe sie", "source": "auto", "target": "zh"}).json()
        assert answer == {"translatedText": "de", "detectedLanguage": detected[0]}
        mixed = {"q": ["I", "Ich liebe dich", "you"], "source": "auto", "target": "zh"}  # of all texts together
        answer = server.post("/translate", json=mixed).json()
        assert answer["detectedLanguage"] == [{"confidence": 60, "language": "de"}] * 3
        described = server.get("/spec").json()["paths"]["/translate"]["post"]["responses"]["200"]["content"]
        fields = described["application/json"]["schema"]["properties"]
        assert [each["type"] for each in fields["detectedLanguage"]["oneOf"]] == ["object", "array"]  # as both above
        for unsure in (True, False):  # what is in the target language already stays as it is
            question = {"q": "我\n爱", "source": "zh-CN", "target": "zh", "unsure": unsure}
            given = server.post("/translate", json=question).json()
            assert given == {"translatedText": "我\n爱"} | ({"unsure": False, "unknown": []} if unsure else {})
        english = server.post("/detect", json={"q": "I love you"}).json()  # of two runs with it, one knows words
        assert english[0] == {"confidence": 100, "language": "en"}
        assert {each["confidence"] for each in server.post("/detect", json={"q": "?"}).json()} == {0}
        targets = {each["code"]: each["targets"] for each in server.get("/languages").json()}
        assert targets == {"de": ["zh"], "en": ["zh", "fr"], "fr": [], "zh": []}
        settings = server.get("/frontend/settings").json()
        codes = [settings["language"][side]["code"] for side in ("source", "target")]
        assert (settings["charLimit"], codes) == (300, ["en", "zh"])
    with TestClient(Api([Translator(german), Translator(wordless)], 300, 0, 9)) as server:
        answer = server.post("/translate", json={"q": "?", "source": "auto", "target": "fr"}).json()
    assert answer == {"translatedText": "?", "detectedLanguage": {"confidence": 0, "language": "en"}}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"q": "a", "source": "zz", "target": "zh"}, "zz is not supported"),
        *(({"q": "a", "source": "en", "target": x}, f"{x} is not") for x in ("zh-Hant", "zho_Hant", "zh-TW", "zh-HK")),
        ({"q": "a", "source": "en", "target": "\ud800"}, "\ufffd is not supported"),
        ({"q": "a", "source": "zh-\ud83d", "target": "en"}, "en is not available as a target language from zh-\ufffd"),
        ({"q": "a", "source": "zh", "target": "en"}, "en is not available as a target language from zh"),
        ({"q": "a", **EN_ZH_PARAMETERS, "format": "rtf"}, "rtf format is not supported"),
        ({"q": ["a", 1], **EN_ZH_PARAMETERS}, "q is not text"),
        ({"q": "a", "source": ["en"], "target": "zh"}, "missing source parameter"),
        ({"q": ["a" * 150] * 2, **EN_ZH_PARAMETERS}, "q has 301 characters, the limit is 300"),
        ({"q": "\na b" + " cat" * 60, **EN_ZH_PARAMETERS}, "'a b cat cat cat cat cat cat cat cat cat '... has "),
        ([], "neither a form nor a JSON object"),
        ("[" * 9000, "the body cannot be read ("),
    ],
)
def test_invalid_parameters_are_answered_with_the_reason(client: TestClient, params: Any, message: str) -> None:
    body = params if isinstance(params, str) else json.dumps(params)
    answer = client.post("/translate", content=body, headers=JSON_HEADERS)
    assert (answer.status_code, [*answer.json()]) == (400, ["error"])
    assert message in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{", b"[" * 9000, b'{"q": 1' + b"0" * 9000 + b"}", b"\xff", b"\xff\xfe\0"])
def test_malformed_bodies_are_answered_with_an_error(client: TestClient, body: bytes) -> None:
    for kind in ("application/json", "text/plain", "multipart/form-data", "multipart/form-data; boundary=a"):
        answer = client.post("/translate", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert [*answer.json()] == ["error"]


def test_each_sentence_is_preprocessed_once(client: TestClient) -> None:
    with patch.object(Reader, "preprocess", autospec=True, side_effect=Reader.preprocess) as preprocess:
        client.post("/translate", json={"q": "The cat.\nA dog sees a cat.", **EN_ZH_PARAMETERS, "unsure": True})
    assert [call.args[1] for call in preprocess.call_args_list] == ["The cat.", "A dog sees a cat."]


def test_limits(client: TestClient, translator: Translator) -> None:
    for n, status in ((39, 200), (40, 400)):  # the model's max_len is 40, with the end of the sentence
        question = {"q": " ".join(["a"] * n), **EN_ZH_PARAMETERS}
        assert translator.longest_sentence_length(question["q"]) == n
        assert client.post("/translate", json=question).status_code == status
    assert [client.post("/detect", json={"q": "a" * n}).status_code for n in (300, 301)] == [200, 400]
    assert [client.post("/detect", content=b"x" * n).status_code for n in (13_600, 13_601)] == [400, 413]
    form = request_arguments("multipart/form-data", {"q": "猫\n" * 130, **EN_ZH_PARAMETERS})  # of more bytes than 300
    assert client.post("/translate", **form).status_code == 200
    assert asgi_response_statuses(client.app, *[{"body": b"x" * 6_801, "more_body": True}] * 2) == [413, None]
    with TestClient(Api([translator], 300, 0, 0)) as server:
        answer = server.post("/translate", json={"q": "a", **EN_ZH_PARAMETERS})
        assert (answer.status_code, "too many requests are waiting" in answer.json()["error"]) == (429, True)


def test_the_rate_limit_is_per_address_and_minute(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api([translator], 300, 2, 9)
    most = [200, 200, 429]
    for seconds, address, statuses in ((0, "a", most), (1, "b", [200]), (59, "a", [429]), (60, "a", most)):
        clock = SimpleNamespace(monotonic=lambda now=seconds: now, perf_counter=time.perf_counter)
        monkeypatch.setattr("minitrans.server.app.time", clock)
        for port, status in enumerate(statuses):  # each on a new connection
            server = TestClient(api, client=(address, port))
            assert server.post("/detect", json={"q": "a"}).status_code == status
            assert server.get("/languages").status_code == 200


def test_a_failure_is_answered_and_the_server_continues(client: TestClient) -> None:
    with patch.object(Translator, "translate", side_effect=ZeroDivisionError):
        answer = client.post("/translate", json={"q": "a", **EN_ZH_PARAMETERS})
    assert (answer.status_code, [*answer.json()]) == (500, ["error"])
    assert client.post("/translate", json={"q": "a", **EN_ZH_PARAMETERS}).status_code == 200


def test_others_are_answered_while_a_text_is_measured(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, answered = threading.Event(), threading.Event()

    def length(*_: object) -> int:
        measured.set()
        return 0 if answered.wait(30) else 999

    monkeypatch.setattr(Translator, "longest_sentence_length", length)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.post, "/translate", json={"q": "a", **EN_ZH_PARAMETERS})
        assert measured.wait(30)
        assert client.get("/health").status_code == 200
        answered.set()
        assert waiting.result().status_code == 200


def test_nothing_is_computed_for_a_client_that_has_left(translator: Translator) -> None:
    api = Api([translator], 300, 0, 1)  # nothing is computed: its lifespan has not begun
    parts = {"body": b"q=a&source", "more_body": True}, {"body": b"=en&target=zh"}, {"type": "http.disconnect"}
    for _ in range(2):  # the second has room, because the first no longer waits
        assert asgi_response_statuses(api, *parts) == [499, None]
    assert "minitrans_waiting_requests 0\n" in TestClient(api).get("/metrics").text


def test_no_file_is_served_and_every_answer_has_a_policy(client: TestClient) -> None:
    for path in ("/../pyproject.toml", "/%2e%2e/etc/passwd", "/templates/serve.js", "//etc/passwd", "/health/"):
        assert (client.get(path).status_code, client.get(path).json()) == (404, {"error": "Not Found"})
    for path in ("/", "/health", "/nothing", "/explain?q=?&source=en&target=zh"):  # the page shows its error in a frame
        assert "frame-ancestors 'self'" in client.get(path).headers["Content-Security-Policy"]
        assert client.get(path).headers["Cache-Control"] == ("no-cache" if path == "/" else "no-store")
    assert client.get("/translate").headers["Allow"] == "POST"
    long = client.get("/explain", params={"q": "\n".join(["", "👍", *["a"] * 9]), **EN_ZH_PARAMETERS})
    assert long.text.count('"log_prob"') == 5
    from_right_or_left = r'<\w+ id="(\w+)"[^>]* dir="auto"'
    assert re.findall(from_right_or_left, long.text) == ["sentence", "text", "translation"]
    assert re.findall(from_right_or_left, client.get("/").text) == ["text", "translation"]
    assert client.get("/explain", params={"q": " ", **EN_ZH_PARAMETERS}).status_code == 400


@pytest.mark.parametrize(("origins", "allowed"), [((), None), (["https://a.org"], "https://a.org"), (["*"], "*")])
def test_allowed_sites_get_cors_headers(translator: Translator, origins: Sequence[str], allowed: str | None) -> None:
    asking = {"Origin": "https://a.org", "Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "Content-Type"
    with TestClient(Api([translator], 300, 0, 9, origins), raise_server_exceptions=False) as server:
        for status, fault in ((200, contextlib.nullcontext()), (500, patch.object(Translator, "translate", None))):
            with fault:
                posted = {"q": "a", **EN_ZH_PARAMETERS}
                answer = server.post("/translate", json=posted, headers={"Origin": "https://a.org"})
            assert (answer.status_code, answer.headers.get("Access-Control-Allow-Origin")) == (status, allowed)
        before = server.options("/translate", headers=asking)
        assert before.status_code == (200 if allowed else 405)
        assert before.headers.get("Access-Control-Allow-Origin") == allowed
        other = server.get("/languages", headers={"Origin": "https://b.org"})
        assert other.headers.get("Access-Control-Allow-Origin") == (allowed if allowed == "*" else None)


# -- the command ----------------------------------------------------------------------------------------------------


def test_a_port_in_use_and_a_missing_extra_are_refused(tiny_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.MonkeyPatch.context() as patch:
        port = str(taken.getsockname()[1])
        in_use = f"cannot listen on 127.0.0.1, port {port}: Address already in use"
        assert in_use in refusal_message("serve", tiny_run, "--port", port)
        with open_socket("127.0.0.1", 0) as listening:  # else bodies wait for an ACK, 40 ms
            assert listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        patch.setitem(sys.modules, "uvicorn", None)
        patch.delitem(sys.modules, "minitrans.server.app", raising=False)
        assert "install minitrans with its extra `serve`" in refusal_message("serve", tiny_run)


def test_every_flag_reaches_the_server(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Mock()
    monkeypatch.setattr("minitrans.server.app.Api", api)
    flags = "--port 0 --char-limit 7 --rate-limit 8 --queue 9 --cors https://A.org:443 --cors *"
    flags += " --cors HTTP://[::A]:80 --cors https://a.org:80 --cors moz-extension://1f-0a"
    assert run_cli("serve", tiny_run, *flags.split())[0] == 0
    (translator,), *limits = api.call_args.args
    assert limits == [7, 8, 9, ["https://a.org", "*", "http://[::a]", "https://a.org:80", "moz-extension://1f-0a"]]
    assert translator.split_sentences


@pytest.fixture(scope="module")
def server(tiny_run: Path) -> Iterator[ServerProcess]:
    with running_server(tiny_run) as server:
        yield server


def test_the_client_of_libretranslate_works(server: ServerProcess, translator: Translator) -> None:
    api = LibreTranslateAPI(f"http://127.0.0.1:{server.port}")
    assert api.translate("I love you.", "en", "zh") == translator.translate(["I love you."])[0]
    assert api.detect("I love you.") == [{"confidence": 100, "language": "en"}]
    languages = {"en": ("English", ["zh"]), "zh": ("Chinese", [])}
    assert {each["code"]: (each["name"], each["targets"]) for each in api.languages()} == languages
    proxy = urllib.request.ProxyHandler({"http": api.url})  # sends the whole address in the first line
    assert urllib.request.build_opener(proxy).open("http://a.org/languages?a=/").status == 200
    with pytest.raises(urllib.error.HTTPError, match="400"):
        api.translate("I love you.", "zh", "en")


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_many_clients_at_once(server: ServerProcess, translator: Translator) -> None:
    right = dict(zip(LINES[2:], translator.translate(LINES[2:]), strict=True))
    assert run_clients(server, LINES[2:], 20, 0.5)
    before = server.resident_mb()
    replies = run_clients(server, LINES[2:], 20, 2)
    assert {reply.status for reply in replies} == {200}
    assert filter_wrong_replies(replies, right) == []
    assert server.resident_mb() < before + 10
    changes: list[dict[str, Any]] = [{"text": ""}, {"status": 500}, {"status": 429}]
    control = [replies[0], *(replies[0]._replace(**change) for change in changes)]
    assert filter_wrong_replies(control, right) == control[1:3]


def test_answers_that_are_missing_or_not_json_count_as_wrong(server: ServerProcess) -> None:
    handler = type("", (BaseHTTPRequestHandler,), {"do_POST": lambda self: self.send_error(503)})
    with HTTPServer(("127.0.0.1", 0), handler) as page:
        threading.Thread(target=page.handle_request).start()
        replies = run_clients(server._replace(port=page.server_port), LINES[:1], 1, 0)
    replies += run_clients(server._replace(port=page.server_port), LINES[:1], 3, 0)
    assert [reply.status for reply in filter_wrong_replies(replies, {LINES[0]: ""})] == [503, 0, 0, 0]
    with pytest.raises(UserError, match=r"3 clients: no translation, but .*Refused"):
        table_row("3 clients", replies[1:], 1)
    assert table_row("1", [replies[0]._replace(status=200, seconds=0.25)], 1) == "| 1 | 1 | 250.0 | 250.0 |  |"
    assert main(["no/such", "--source", "no/such"]) == 2


@pytest.mark.slow
def test_two_hundred_clients_for_a_minute(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("\n".join(LINES), encoding="utf-8")
    assert main([str(tiny_run), "--source", str(tmp_path / "lines"), "--clients", "200", "--seconds", "60"]) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_accepted_requests_are_answered_before_the_server_stops(tiny_run: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("the signal is ignored, as by nohup")
    with ThreadPoolExecutor() as pool, running_server(tiny_run, "--char-limit", "100000") as server:
        address = f"http://127.0.0.1:{server.port}"
        translate, text = LibreTranslateAPI(address).translate, "I love you.\n" * 4000
        answers = [pool.submit(translate, text, "en", "zh") for _ in range(2)]
        end, seen = time.monotonic() + 30, 0
        while seen < 2:  # one is computed and one waits, and not just for the moment before the first is begun
            counts = urllib.request.urlopen(f"{address}/metrics").read().decode()
            seen = seen + 1 if "minitrans_waiting_requests 1" in counts else 0
            assert time.monotonic() < end
            time.sleep(0.05)
        server.process.send_signal(number)
        assert [answer.result(60).count("\n") for answer in answers] == [4000, 4000]
        assert server.process.wait(60) == 0


# -- the page -------------------------------------------------------------------------------------------------------


@needs_browser
def test_the_page_by_keyboard_alone(server: ServerProcess, translator: Translator) -> None:
    address = f"http://127.0.0.1:{server.port}/"
    value = "document.getElementById('translation').textContent"
    with open_page_and_record_events() as (page, requests, errors):
        for width, dark, user in ((1200, False, ""), (320, True, "user:password@")):
            visit(page, address.replace("//", f"//{user}"), width, dark)
            page.wait_for_function("() => document.activeElement.id === 'text'")
            page.focus("#examples button")
            page.keyboard.press("Enter")
            assert page.get_by_label("Text").get_attribute("id") == "text"
            assert page.evaluate("[text.lang, translation.lang]") == ["en", "zh"]
            assert page.get_by_label("Translation").get_attribute("aria-live") == "polite"
            page.wait_for_function(f"() => {value} !== '' && text.value === 'Good morning. How are you?'")
            page.wait_for_function("() => figures.firstChild !== null")
            page.evaluate("document.getElementById('text').select()")
            page.focus("#text")
            for typed in ("I love", " axolotls."):
                page.keyboard.insert_text(typed)
            page.wait_for_function(f"() => {value} === {json.dumps(translator.translate(['I love axolotls.'])[0])}")
            doubt = page.text_content("#doubt")
            assert doubt == "Unsure: this translation may be wrong. Not in the training data: axolotls."
            page.wait_for_function("() => figures.children.length === 1 && figures.firstChild.src.includes('axolotls')")
            waiting = "draw({ q: 'I sleep.', source: 'en', target: 'zh' }), figures.children.length"
            fits = "document.documentElement.scrollWidth <= innerWidth"
            alone = "changed(), clearTimeout(translating), figures.children.length"
            assert page.evaluate(f"[({waiting}), {fits}, ({alone})]") == [2, True, 1]
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == ("rgb(21, 23, 27)" if dark else "rgb(252, 252, 250)")
        _, frame = page.frames
        frame.wait_for_function("() => document.getElementById('text').textContent === 'I love axolotls.'")
        assert frame.locator("#map svg").count() == 1
        assert frame.text_content("#doubt") == "unsure: not in the training data: axolotls"
        page.evaluate("document.getElementById('text').select()")
        page.keyboard.insert_text("I sleep.\n" + "睡\n" * 1000)  # nine bytes each in an address
        page.wait_for_function(
            "() => figures.firstChild.src.includes('sleep.%') && figures.firstChild.src.length < 8000"
        )
        page.evaluate("document.getElementById('text').select()")
        page.keyboard.insert_text("I sleep. " * 99)
        page.wait_for_function("() => figures.firstChild.src.includes('sleep.+I+sleep.&source')")
        love, too_long = ("I love you.", translator.translate(["I love you."])[0][:15]), "Axolotls " + "sleep " * 40
        refused = (too_long, "'Axolotls sleep"), ("a" * 5001, "The text has 50")
        for typed, shown in (("😊", "😊"), ("5️⃣", "5️⃣"), love, *refused, love, (" ", "")):
            page.evaluate("document.getElementById('text').select()")
            page.keyboard.insert_text(typed)
            seen = f"(translation.textContent + fault.textContent).slice(0, 15) === {json.dumps(shown)}"
            page.wait_for_function(f"() => {seen} && !figures.firstChild === {json.dumps(typed != love[0])}")
        page.keyboard.insert_text("I sleep.")
        page.goto(f"{address}languages")
        page.go_back()
        page.wait_for_function(f"() => text.value === ' I sleep.' && {value} !== '' && figures.firstChild !== null")
        assert sum("axolotls." in url for url in requests) == 2  # no frame is loaded twice
        assert all("400 (Bad Request)" in error for error in errors)
        assert all(url.replace(user, "").startswith(address) for url in requests)
