"""Replays recorded conversations against a store and checks every promise that can be seen from outside.

Talks to ``commands``. Each conversation is lived through as an agent backend would: the human message is appended,
the view is loaded for the model, the rest of the turn is appended. A closing question of our own makes the last turn
an earlier one too. Then the log is compared with the file, and every tool result is read back to its end.
"""

from __future__ import annotations

import asyncio
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import batched
from pathlib import Path
from time import perf_counter
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.cli.checks import (
    check_dict,
    check_log,
    check_read_back,
    check_records,
    fingerprint,
    first_difference,
    is_explained,
)
from convstore.cli.readback import read_back
