"""Test of a search while serving, with a model endpoint that does not reply."""

import time

from compiler.llm.endpoint.settings import Endpoint
from compiler.online_tuning.search_process import SearchProcess
from compiler.online_tuning.search_worker import Begin, SearchJob
from compiler.options import CompileOptions
from compiler.tuning.measure.measurer import Measurer
from tests.support.chat_server import MODEL, ChatServer, Reply


def test_search_can_be_stopped_during_a_request(measurer: Measurer) -> None:
    graph = measurer.prepared.graph
    with ChatServer(Reply(hang=60)) as server:
        endpoint = Endpoint(server.url, MODEL)
        job = SearchJob(
            graph, measurer.prepared.config, CompileOptions(rounding="reference"), "llm", endpoint=endpoint
        )
        with SearchProcess(job) as search:
            search.submit(Begin(measurer.conditions.dram, measurer.first.schedule))
            search.submit(None)
            while not server.asked and search.process.is_alive():
                time.sleep(0.05)
    assert len(server.asked) == 1 and search.process.exitcode == 0
