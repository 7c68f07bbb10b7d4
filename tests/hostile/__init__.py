"""Messages that no engine may see as they are: what ends its process, what damages silently, what is nonsense.

Each is a message in either framing, with the answer that it must get. The tests feed all of them to the
pipeline; `scripts/shield.py` feeds those that end an engine to the real one as well.
"""

from tests.hostile.case import Hostile, Segments
from tests.hostile.media import MEDIA
from tests.hostile.requests import REQUESTS

HOSTILE = (*REQUESTS, *MEDIA)

__all__ = ["HOSTILE", "Hostile", "Segments"]
