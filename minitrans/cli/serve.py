"""The command `serve`: translations over HTTP."""

import re
import socket
import sys
from argparse import ArgumentTypeError, Namespace

from minitrans.cli.arguments import Parser, bounded_number, positive_int
from minitrans.cli.common import add_common_flags
from minitrans.errors import UserError


def add_serve_flags(parser: Parser) -> None:
    """Add the flags that say what to serve, where, and within which limits."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run folders, one for each pair of languages")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all of this machine's")
    parser.add_argument("--port", type=bounded_number(int, 0, 65535), default=5000, help="port; 0: any free port")
    chars, requests = bounded_number(int, 1, 100_000, "all wait for a long request"), bounded_number(int, 0, 2**31 - 1)
    parser.add_argument("--char-limit", type=chars, default=5000, metavar="N", help="most characters in a request")
    parser.add_argument(
        "--rate-limit", type=requests, default=0, metavar="N", help="most requests per client and minute; 0: no limit"
    )
    parser.add_argument("--queue", type=positive_int, default=256, metavar="N", help="most requests that may wait")
    sites = "site whose scripts may read the answers, such as https://example.org; * is any; may be given several times"
    parser.add_argument("--cors", type=parse_origin, action="append", default=[], metavar="ORIGIN", help=sites)
    add_common_flags(parser)


def parse_origin(text: str) -> str:
    """A site as browsers name it: in lower case, without the default port."""
    if not re.fullmatch(r"(?ai)\*|(?:https?|[a-z-]+-extension)://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?", text):
        raise ArgumentTypeError(f"it must be a site without a path, such as https://example.org, or *, not {text}")
    site = text.lower()
    return site.removesuffix(":443" if site.startswith("https") else ":80")


def serve_command(args: Namespace) -> int:
    """Serve LibreTranslate's API, and a page to try the models on, until Ctrl-C or SIGTERM."""
    try:
        from minitrans.server.app import Api
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed; install minitrans with its extra `serve`") from error
    from minitrans.translate.translator import Translator

    runs: dict[tuple[str, str], str] = {}
    with open_socket(args.host, args.port) as listening:
        translators = []
        for run in args.runs:
            translator = Translator.load(run, compiled=args.compiled)
            translator.split_sentences = True
            source, target = pair = translator.bundle.source, translator.bundle.target
            if pair in runs:
                raise UserError(f"{run} translates {source} to {target}, as {runs[pair]} does; give one of them")
            runs[pair] = run
            translators.append(translator)
        api = Api(translators, args.char_limit, args.rate_limit, args.queue, args.cors)
        host, port = listening.getsockname()[:2]
        pairs = ", ".join(f"{source} to {target}" for source, target in runs)
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {pairs} at {where} (Ctrl-C ends)", file=sys.stderr, flush=True)
        api.serve(listening)
    return 0


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on a host's port, 0 for any free one; return the socket."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "not a host name"
        raise UserError(f"cannot listen on {host}, port {port}: {why}; give another --host or --port") from error
    # Connections inherit it. asyncio does not set it if the protocol number is 0; a body would wait 40 ms for an ACK.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # or clients that vanished stay connected for ever
    return listening
