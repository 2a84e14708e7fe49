"""What the use cases share at run time: conversation cache, log reader, clock and threads.

Floor 3, on `mongo`. Everything cached here can be read again from the database.
"""

from __future__ import annotations

__all__: list[str] = []
