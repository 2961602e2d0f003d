"""When the cloud worker may be called: a pause that grows after failures, and one call at a time until one succeeds.

Pure: the caller passes the time in seconds of any steady clock.
"""

from typing import Optional

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Breaker:
    """Permits calls. Results of calls that were permitted before the last change do not count."""

    def __init__(self) -> None:
        """Create a breaker that permits calls."""
        self.failures = 0
        self._next_call = 0.0
        self._is_probing = False
        self._generation = 0

    def permit(self, now: float) -> Optional[int]:
        """Return a permit for one call, whose result is passed back with it, or None."""
        if self.failures and (now < self._next_call or self._is_probing):
            return None
        self._is_probing = self.failures > 0
        return self._generation

    def succeeded(self, permit: int) -> None:
        """The cloud worker answered: calls are permitted again."""
        if permit == self._generation and self.failures:
            self.failures = 0
            self._changed()

    def failed(self, permit: int, now: float) -> None:
        """The call failed: no calls for 1 s, then 2 s, 4 s and so on up to 30 s."""
        if permit == self._generation:
            self._next_call = now + min(FIRST_PAUSE * 2.0 ** min(self.failures, 10), LONGEST_PAUSE)
            self.failures += 1
            self._changed()

    def _changed(self) -> None:
        self._is_probing = False
        self._generation += 1
