"""The contract suite: one test for each promise that a backend of the store must keep, for authors of backends.

The suite needs the extra ``test``. Subclass `StoreContract` and give it a database::

    class TestMyDriver(StoreContract):
        @pytest.fixture
        async def database(self):
            client = MyClient()
            yield client["contract"]
            await client.close()

Each test uses new scopes, so all tests can share one database.
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import hypothesis  # noqa: F401 - the modules below need both
    import pytest  # noqa: F401
except ImportError as error:
    raise MissingExtraError(package=error.name or "pytest", extra="test") from error

from convstore.testing.appending import AppendContract
from convstore.testing.application_state import ApplicationStateContract
from convstore.testing.children import ChildContract
from convstore.testing.compacting import CompactContract
from convstore.testing.ending import EndContract
from convstore.testing.fixtures import ContractFixtures
from convstore.testing.forking import ForkContract
from convstore.testing.interrupted_writes import InterruptedWriteContract
from convstore.testing.isolation import IsolationContract
from convstore.testing.items import ItemContract
from convstore.testing.listing import ListContract
from convstore.testing.loading import LoadContract
from convstore.testing.long_texts import LongTextContract
from convstore.testing.lossless import LosslessContract
from convstore.testing.reading import ReadBackContract
from convstore.testing.repairing import RepairContract
from convstore.testing.resending import ResendContract
from convstore.testing.restoring import RestoreContract
from convstore.testing.retention import RetentionContract
from convstore.testing.rewinding import RewindContract
from convstore.testing.samples import rag_turn, same_messages
from convstore.testing.sealing import SealContract
from convstore.testing.searching import SearchContract
from convstore.testing.sources import SourcesContract
from convstore.testing.states import StateContract
from convstore.testing.statistics import StatsContract
from convstore.testing.turn_messages import TurnMessageContract
from convstore.testing.turn_results import TurnResultContract
from convstore.testing.turn_sessions import TurnSessionContract
from convstore.testing.turn_streams import TurnStreamContract
from convstore.testing.turn_variants import TurnVariantContract
from convstore.testing.turn_writes import TurnWriteContract
from convstore.testing.turns import TurnContract
from convstore.testing.verifying import VerifyContract
from convstore.testing.waiting import WaitingContract
from convstore.testing.watching import WatchContract

__all__ = ["StoreContract", "rag_turn", "same_messages"]


class StoreContract(
    LosslessContract,
    AppendContract,
    ApplicationStateContract,
    ChildContract,
    ForkContract,
    ResendContract,
    LoadContract,
    LongTextContract,
    ReadBackContract,
    SourcesContract,
    SearchContract,
    SealContract,
    RewindContract,
    TurnContract,
    TurnSessionContract,
    TurnMessageContract,
    TurnResultContract,
    TurnWriteContract,
    TurnStreamContract,
    TurnVariantContract,
    WaitingContract,
    WatchContract,
    CompactContract,
    StateContract,
    IsolationContract,
    ItemContract,
    EndContract,
    ListContract,
    InterruptedWriteContract,
    RetentionContract,
    StatsContract,
    VerifyContract,
    RepairContract,
    RestoreContract,
    ContractFixtures,
):
    """The promises that a store keeps by itself, with one test for each."""
