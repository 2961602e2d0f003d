"""The cloud worker's HTTP server: `POST /<service>/predict` with {"data"}, answered by {"result"}, and `/healthz`."""

import http.server
import json
import logging
import socketserver
import threading
import time
from typing import Any, Callable

from neptune_worker.settings import Address

MAX_BODY_BYTES = 32 * 1024 * 1024
DRAIN_SECONDS = 4.0
IDLE_SECONDS = 30
"""How long a connection may wait for a request, or for more of one."""

_log = logging.getLogger("neptune_worker")


def _error(text: str) -> str:
    return json.dumps({"error": text})


class Server(http.server.ThreadingHTTPServer):
    """Calls `predict` for each request, in at most `threads` threads at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Address, path: str, predict: Callable[[Any], Any], threads: int) -> None:
        """Listen on the address. Raises OSError if it is in use."""
        self.path, self.predict = path, predict
        self.slots = threading.Semaphore(threads)
        self.is_stopping = False
        self._pending, self._pending_changed = 0, threading.Condition()
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def start(self) -> None:
        """Serve in the background."""
        threading.Thread(target=self.serve_forever, args=(0.1,), name="neptune-server", daemon=True).start()
        print(f"cloud worker listens on {self.server_name}:{self.server_port}{self.path}", flush=True)

    def stop(self) -> None:
        """Accept no more connections, and end after the requests in progress, or after four seconds."""
        self.is_stopping = True
        self.shutdown()
        self.socket.close()
        end = time.monotonic() + DRAIN_SECONDS
        with self._pending_changed:
            while self._pending and time.monotonic() < end:
                self._pending_changed.wait(end - time.monotonic())
        if self._pending:
            _log.warning("ended with %d requests in progress", self._pending)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log no traceback: a client that gave up closes its connection."""
        _log.info("connection of %s ended", client_address)

    def add_pending(self, change: int) -> None:
        """Count the requests in progress."""
        with self._pending_changed:
            self._pending += change
            self._pending_changed.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: Server

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._answer(200, '{"status": "ok"}')
        else:
            self._answer(404, _error(f"unknown path; this worker serves /healthz and POST {self.server.path}"))

    def do_POST(self) -> None:
        self.server.add_pending(1)
        try:
            self._answer(*self._predict())
        finally:
            self.server.add_pending(-1)

    def _predict(self) -> tuple[int, str]:
        """Return status and content of the answer."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            if length.isdecimal():
                return 413, _error(f"the body has more than {MAX_BODY_BYTES} bytes")
            return 411, _error("the request has no Content-Length")
        body = self.rfile.read(int(length))
        if self.path != self.server.path:
            return 404, _error(f"unknown path; this worker serves POST {self.server.path}")
        try:
            data = json.loads(body)["data"]
        except (ValueError, KeyError, TypeError):
            return 400, _error('the body must be a JSON object with "data"')
        try:
            with self.server.slots:
                return 200, json.dumps({"result": self.server.predict(data)})
        except ValueError as error:
            return 400, _error(str(error))
        except Exception:
            _log.exception("predict failed")
            return 500, _error("predict failed; the log of the worker has the reason")

    def _answer(self, status: int, content: str) -> None:
        body = content.encode()
        self.close_connection = self.close_connection or self.server.is_stopping
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log no requests."""
