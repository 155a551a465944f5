"""A key-value store over HTTP, such as the one of horovodrun."""

from __future__ import annotations

from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

__all__ = ["HttpStore"]


class HttpStore:
    """The keys below a URL.

    Args:
        url: of the store, and the scope of the keys.
        timeout: longest wait for an answer, in seconds.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._url = url
        self._timeout = timeout
        # Never through a proxy: the launcher is in the ranks' own network.
        self._open = build_opener(ProxyHandler({})).open

    def set(self, key: str, value: bytes) -> None:
        """See `gradcomp.runtime.agree.marks.Store`."""
        self._ask(Request(f"{self._url}/{key}", value, method="PUT"))

    def get(self, key: str) -> bytes | None:
        """See `gradcomp.runtime.agree.marks.Store`."""
        return self._ask(Request(f"{self._url}/{key}"))

    def _ask(self, request: Request) -> bytes | None:
        try:
            with self._open(request, timeout=self._timeout) as reply:
                answer: bytes = reply.read()
                return answer
        except HTTPError as error:
            if error.code == 404:
                return None
            raise
        except (URLError, HTTPException) as error:
            raise OSError(str(getattr(error, "reason", error))) from error
