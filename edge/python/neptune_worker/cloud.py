"""The edge worker's calls of the cloud worker: `POST /<service>/predict` with {"data"}, answered by {"result"}."""

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from typing import Any, Optional

from neptune_worker.breaker import Breaker
from neptune_worker.settings import Address

CALL_SECONDS = 5.0
"""The limit of a whole call, with name, connection and answer."""

_log = logging.getLogger("neptune_worker")


class Cloud:
    """Calls a cloud worker. Behind EdgeMesh each connection opens at once, so the whole call is limited."""

    def __init__(self, address: Address, path: str, seconds: float = CALL_SECONDS) -> None:
        """Take the address and path of the cloud worker, and the limit of a call in seconds."""
        self.breaker = Breaker()
        self._address, self._path, self._seconds = address, path, seconds
        self._lock = threading.Lock()
        self._calls: list[_Call] = []
        self._is_stopped = False

    def ask(self, payload: Any) -> Any:
        """Return the result of the cloud worker, or None without one. A result that is null counts as none."""
        with self._lock:
            self._calls = [known for known in self._calls if known.is_alive()]
            # A call that was given up may hang in the resolution of the name, which nothing ends.
            is_blocked = self._is_stopped or any(known.is_given_up for known in self._calls)
            permit = None if is_blocked else self.breaker.permit(time.monotonic())
            if permit is None:
                return None
            try:
                call = _Call(self._address, self._path, json.dumps({"data": payload}).encode(), self._seconds)
            except (TypeError, ValueError):
                self.breaker.failed(permit, time.monotonic())
                raise
            self._calls.append(call)
            call.start()
        if not call.ended.wait(self._seconds):
            call.abort(f"no answer within {self._seconds:g} s")
        with self._lock:
            if call.problem is None:
                self.breaker.succeeded(permit)
                return call.result
            self.breaker.failed(permit, time.monotonic())
        _log.warning(
            "cloud worker %s:%d: %s; using the edge result", self._address.host, self._address.port, call.problem
        )
        return None

    def stop(self) -> None:
        """Give up the calls in progress, and make no more."""
        with self._lock:
            self._is_stopped, calls = True, self._calls
        for call in calls:
            call.abort("the worker stops")


class _Call(threading.Thread):
    """One call. It is a thread because the timeout of a socket applies to each read, not to the call."""

    def __init__(self, address: Address, path: str, body: bytes, seconds: float) -> None:
        super().__init__(daemon=True)
        self.result: Any = None
        self.problem: Optional[str] = "no answer"
        self.ended = threading.Event()
        """Set when the result is known, or the call was given up."""
        self.is_given_up = False
        self._path, self._body = path, body
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        self._socket: Optional[socket.socket] = None

    def run(self) -> None:
        try:
            answer = self._post()
            problem = None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            answer, problem = None, str(error) or type(error).__name__
        finally:
            self._connection.close()
        if not self.is_given_up:
            self.result, self.problem = answer, problem
            self.ended.set()

    def _post(self) -> Any:
        connection = self._connection
        connection.connect()
        # The connection forgets it when the answer has no length.
        self._socket = connection.sock
        if self.is_given_up:
            return None
        connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise OSError(f"HTTP {response.status}: {answer[:200].decode(errors='replace').strip()}")
        return json.loads(answer)["result"]

    def abort(self, problem: str) -> None:
        """Give up the call: end a read or write that blocks, and so the thread."""
        if not self.ended.is_set():
            self.problem, self.is_given_up = problem, True
            self.ended.set()
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
