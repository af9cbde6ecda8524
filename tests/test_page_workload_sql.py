"""The Workload page: SQL to copy for a database, and its answer dropped as a log."""

from __future__ import annotations

from kvcore.workload.database.query import take_away
from tests.page_app import checked, seen
from tests.test_page_workload import open_workload, upload


def test_sql_to_take_away_has_the_names_that_were_typed_and_its_answer_is_a_log() -> None:
    app = open_workload()
    assert take_away("postgres") in [code.value for code in app.code]
    app.text_input(key="workload.sql.requests").set_value("public.LiteLLM_SpendLogs")
    app.selectbox(key="workload.sql.dialect").set_value("trino").run()
    assert take_away("trino", "public.LiteLLM_SpendLogs") in [code.value for code in checked(app).code]
    app.text_input(key="workload.sql.status").set_value("http_status").run()
    query = take_away("trino", "public.LiteLLM_SpendLogs", status="http_status")
    assert query in [code.value for code in checked(app).code]
    assert '"http_status"' in query
    app.text_input(key="workload.sql.requests").set_value("a\\b").run()
    assert "is no name" in seen(checked(app))
    answer = b"prompt,answer,requests\n900,80,99\n2000,300,1\n-1,-1,7\n"
    assert "100 requests" in seen(upload(open_workload(), "answer.csv", answer))
