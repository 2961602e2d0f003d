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
        self._abandoned: list[threading.Thread] = []

    def ask(self, payload: Any) -> Any:
        """Return the result of the cloud worker, or None without one. A result that is null counts as none."""
        body = json.dumps({"data": payload}).encode()
        with self._lock:
            # A call may hang in the resolution of the name, which nothing ends.
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            permit = None if self._abandoned else self.breaker.permit(time.monotonic())
        if permit is None:
            return None
        call = _Call(self._address, self._path, body, self._seconds)
        call.start()
        call.join(self._seconds)
        problem = call.problem
        if call.is_alive():
            call.abort()
            problem = f"no answer within {self._seconds:g} s"
        with self._lock:
            if problem is None:
                self.breaker.succeeded(permit)
                return call.result
            self._abandoned.append(call)
            self.breaker.failed(permit, time.monotonic())
        _log.warning("cloud worker %s:%d: %s; using the edge result", self._address.host, self._address.port, problem)
        return None


class _Call(threading.Thread):
    """One call. It is a thread because the timeout of a socket applies to each read, not to the call."""

    def __init__(self, address: Address, path: str, body: bytes, seconds: float) -> None:
        super().__init__(daemon=True)
        self.result: Any = None
        self.problem: Optional[str] = "no answer"
        self._path, self._body = path, body
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        self._socket: Optional[socket.socket] = None
        self._is_aborted = False

    def run(self) -> None:
        connection = self._connection
        try:
            connection.connect()
            # The connection forgets it when the answer has no length.
            self._socket = connection.sock
            if not self._is_aborted:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
                if response.status != 200:
                    raise OSError(f"HTTP {response.status}: {answer[:200].decode(errors='replace').strip()}")
                self.result = json.loads(answer)["result"]
                self.problem = None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.problem = str(error) or type(error).__name__
        finally:
            connection.close()

    def abort(self) -> None:
        """End a read or write that blocks, and so the thread."""
        self._is_aborted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
