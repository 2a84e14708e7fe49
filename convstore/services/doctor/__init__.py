"""Looks whether all that is stored is as it should be, and mends what follows from the rest; see `store.verify`.

Layer 4. `verifier` goes through the database; `schema_check` looks at collections and indexes, `conversation_check` at
one conversation, with `log_check` for its log and `live_check` for what is rewound in it. `findings` keeps what they
tell; what may only be on its way waits in `doubts`.
"""

from __future__ import annotations

from convstore.services.doctor.schema_check import SchemaCheck
from convstore.services.doctor.verifier import Verifier

__all__ = ["SchemaCheck", "Verifier"]
