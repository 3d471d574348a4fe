"""PrefillDelayer: prefill-first gathers waiting prompts into larger prefills, for a bounded number of steps."""

from .config import SchedulerConfig


class PrefillDelayer:
    """Counts steps, never time. Only asked when decodes run: an idle device prefills at once."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._delayed_steps = 0
        self._paused_decode_steps = 0

    def delays(self, waiting_tokens: int, has_decodes: bool) -> bool:
        """Mutates its count: whether waiting prompts should gather for one more step."""
        enough = waiting_tokens >= self._config.prefill_delay_tokens
        if not has_decodes or enough or self._delayed_steps >= self._config.prefill_delay_steps:
            self._delayed_steps = 0
            return False
        self._delayed_steps += 1
        return True

    def decodes_first(self) -> bool:
        """Whether decodes have gone without a token for so long that they go first in this step. Pure."""
        return self._paused_decode_steps >= self._config.max_decode_pause_steps

    def note_step(self, decodes_waiting: bool) -> None:
        """Mutates its count: whether the step left a decoding request without a token."""
        self._paused_decode_steps = self._paused_decode_steps + 1 if decodes_waiting else 0
