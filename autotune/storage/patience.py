"""Patience: what a storage does not answer is tried again for a while, with growing pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy

from autotune.errors import StorageError
from autotune.storage.urls import shown

PATIENCE_S = 120.0
"""How long a controller waits for a storage that does not answer: the restart of a server, or its failover."""
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Before the second attempt, the third, ...; the last one repeats. At once first: a connection that lay idle may be
gone while the server is well."""

_Answer = TypeVar("_Answer")
_LOGGER = logging.getLogger(__name__)


class Patience:
    """Runs attempts on one storage; impatient until told to hold on, as a reader is.

    Args:
        url: of the storage, for messages.
    """

    def __init__(self, url: str) -> None:
        self._where = shown(url)
        self._limit_s = 0.0
        self._tell: Callable[[str], None] = _LOGGER.warning
        self._advice = "see that the server runs or the file may be used, then try again"
        self._has_given_up = False

    def hold_on(self, tell: Callable[[str], None] | None, *, advice: str) -> None:
        """From now on try again for up to `PATIENCE_S`.

        Args:
            tell: hears once that the storage does not answer, and once that it does again; None: a warning in the log.
            advice: what the user does after the patience has come to its end.
        """
        self._limit_s = PATIENCE_S
        self._tell = tell or _LOGGER.warning
        self._advice = advice

    def run(self, attempt: Callable[[bool], _Answer]) -> _Answer:
        """Return the answer of the first attempt that gets one.

        Once the patience has come to its end, further calls try only once, until one succeeds: what is left to do at
        the end of a campaign must not wait again and again.

        Args:
            attempt: gets whether an attempt was made before. It may have been carried out all the same: an answer can
                be lost on its way.

        Raises:
            StorageError: when there is no answer for as long as the patience lasts.
        """
        begun_s = time.monotonic()
        attempts, has_told = 0, False
        while True:
            try:
                answer = attempt(attempts > 0)
            except sqlalchemy.exc.SQLAlchemyError as error:
                if not _is_outage(error):
                    raise
                waited_s = time.monotonic() - begun_s
                stale = attempts == 0 and isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
                if not stale and (self._has_given_up or waited_s >= self._limit_s):
                    raise self._end(error) from error
                attempts += 1
                if attempts > 1 and not has_told:
                    self._tell(
                        f"the storage does not answer ({_reason(error)}); trying again for up to {self._limit_s:.0f} s"
                    )
                    has_told = True
                self._pause(min(_PAUSES_S[min(attempts, len(_PAUSES_S)) - 1], max(0.0, self._limit_s - waited_s)))
            else:
                self._has_given_up = False
                if has_told:
                    self._tell(f"the storage answers again, after {time.monotonic() - begun_s:.0f} s")
                return answer

    def _pause(self, time_s: float) -> None:
        try:
            time.sleep(time_s)
        except BaseException:  # Ctrl-C: who wants to go is not held up by the clean-up
            self._has_given_up = True
            raise

    def _end(self, error: sqlalchemy.exc.SQLAlchemyError) -> StorageError:
        self._has_given_up = True
        waited = f"has not answered for {self._limit_s:.0f} s" if self._limit_s else "does not answer"
        return StorageError(f"storage: {self._where} {waited}: {_reason(error)}; {self._advice}")


def _is_outage(error: sqlalchemy.exc.SQLAlchemyError) -> bool:
    """Whether an error speaks of the server, the connection or a lock, and not of the statement."""
    kinds = (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError, sqlalchemy.exc.TimeoutError)
    return isinstance(error, kinds) or (isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated)


def _reason(error: sqlalchemy.exc.SQLAlchemyError) -> str:
    """Return the driver's own words, on one line."""
    own = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None else error
    return next(iter(str(own).strip().splitlines()), type(own).__name__)
