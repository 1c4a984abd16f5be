"""Each place where the package opens or makes a file, or listens, with the tests of what guards it.

``test_places.py`` compares the places with the code: a new one needs an entry here, and a test that its entry names.
"""

from __future__ import annotations

__all__ = ["FILES", "LISTENERS", "MESSAGES"]

TWO_USERS = "tests/storage/test_two_users.py"
PLANTED = f"{TWO_USERS}::test_a_planted_name_is_refused_and_nothing_is_written_through_it"
UNREADABLE = f"{TWO_USERS}::test_the_other_user_reads_no_file_of_a_job_that_runs_nor_of_an_inbox"
REPORT = f"{TWO_USERS}::test_a_report_is_not_written_through_a_planted_name"
REPORT_UNREADABLE = f"{TWO_USERS}::test_the_other_user_reads_no_report"
RANDOM_NAME = f"{TWO_USERS}::test_a_predictable_temporary_name_is_not_used"
MODES = "tests/storage/test_sqlite.py::test_a_new_file_and_its_log_are_for_the_user_alone_whatever_the_umask"
LOCK = "tests/bulk/journal/test_lock.py"
TRUST = "tests/config/test_trust.py"
HERE = "tests/security/test_places.py"
NO_NAME = f"{HERE}::test_a_temporary_file_of_a_job_has_no_name_and_no_reader"
FOLDER = f"{HERE}::test_a_temporary_folder_is_for_the_user_alone"
READS_ONLY = f"{HERE}::test_a_place_that_reads_does_not_write"
DISCARDS = f"{HERE}::test_a_place_that_discards_writes_to_the_null_device"
CONFORMANCE = f"{HERE}::test_the_servers_of_the_conformance_suite_bind_the_loopback"

FILES = {
    # every file of ours is created by one of these
    "_support/private_files.py: create_private: open": (PLANTED, UNREADABLE, MODES),
    "_support/private_files.py: replace_private: mkstemp": (RANDOM_NAME, REPORT_UNREADABLE),
    "_support/private_files.py: replace_private: replace": (REPORT,),
    "_support/private_files.py: private_stream: replace_private": (REPORT, REPORT_UNREADABLE),
    "_support/private_files.py: private_stream: open": (REPORT,),
    # journals, inboxes and overflow files
    "bulk/journal/lock.py: JobLock.acquire: create_private": (
        PLANTED,
        f"{LOCK}::test_a_journal_is_private_from_its_first_byte",
    ),
    "bulk/journal/lock.py: _take_beside: create_private": (PLANTED,),
    "bulk/journal/lock.py: _opened: open": (f"{LOCK}::test_a_link_to_a_missing_file_is_refused",),
    "bulk/journal/lock.py: _connected: connect": (PLANTED,),
    "bulk/journal/facts.py: _reader: connect": (READS_ONLY,),
    "bulk/journal/marks.py: _opened: create_private": (PLANTED,),
    "bulk/journal/marks.py: _opened: open": (
        "tests/bulk/journal/test_journal.py::test_marks_are_private_and_go_with_the_run",
    ),
    "bulk/journal/marks.py: _opened: FileIO": (
        "tests/bulk/journal/test_journal.py::test_marks_are_private_and_go_with_the_run",
    ),
    "storage/sqlite.py: _require_private: create_private": (PLANTED, MODES),
    "storage/sqlite.py: _existing: connect": (PLANTED, MODES),
    "bulk/journal/overflow.py: Overflow.add: TemporaryFile": (NO_NAME,),
    "bulk/journal/duplicates.py: Hashes._end_run: TemporaryFile": (NO_NAME,),
    "bulk/job.py: Job.estimate: TemporaryDirectory": (FOLDER,),
    "cli/jobs/page/content.py: csv_of: TemporaryFile": (
        "tests/cli/jobs/test_page.py::test_the_file_of_a_download_has_no_name_and_no_reader",
    ),
    # reports and states
    "bulk/report/plot.py: plot_report: private_stream": (REPORT, REPORT_UNREADABLE),
    "cli/jobs/files.py: _written: private_stream": (REPORT, REPORT_UNREADABLE),
    "cli/emulator.py: _write_state: replace_private": (REPORT, REPORT_UNREADABLE),
    # the configuration
    "config/files.py: _open: open": (
        f"{TRUST}::test_a_file_is_judged_by_what_was_opened",
        f"{TRUST}::test_a_pipe_in_the_place_of_a_file_does_not_block",
    ),
    "config/trust.py: remember: mkdir": (f"{TRUST}::test_the_list_of_trusted_files_is_the_users_alone",),
    "config/trust.py: remember: open": (f"{TRUST}::test_the_list_of_trusted_files_is_the_users_alone",),
    "config/trust.py: _path_in: open": (f"{TRUST}::test_an_entry_that_the_user_did_not_make_is_no_trust",),
    "credentials.py: token_in: open": (READS_ONLY,),
    "credentials.py: _listed: open": (READS_ONLY,),
    # what a user names to be read
    "bulk/input/file.py: RowFile._stream: open": (READS_ONLY,),
    "cli/demo.py: _read_rows: open": (READS_ONLY,),
    "cli/jobs/listing.py: _is_journal: open": (READS_ONLY,),
    # output that has no reader
    "cli/entry_point.py: run: open": (DISCARDS,),
    "cli/errors.py: discard_output: open": (DISCARDS,),
    "cli/jobs/run.py: _print_report: open": (DISCARDS,),
    # the conformance suites, in folders of their own
    "testing/conformance/requests.py: _netrc: TemporaryDirectory": (FOLDER,),
    "testing/conformance/requests.py: _netrc: write_text": (FOLDER,),
    "testing/conformance/requests.py: _unix: TemporaryDirectory": (FOLDER,),
    "testing/conformance/tls.py: Authority.trusted_by: TemporaryDirectory": (FOLDER,),
    "testing/conformance/pending.py: ServerRecords.__enter__: TemporaryDirectory": (FOLDER,),
}

EVERY_PORT = f"{HERE}::test_no_port_of_the_emulator_obeys_a_page_of_another_server"
BROWSER = "tests/emulator/server/test_browser.py::test_a_page_of_another_server_changes_reads_and_copies_nothing"
PUBLIC = f"{HERE}::test_the_receivers_port_tells_a_page_of_another_server_nothing"
PAGES = "tests/cli/page/test_app.py::test_a_page_of_another_server_gets_nothing_even_with_the_token"
PAGES_BOUND = f"{HERE}::test_the_page_of_a_command_is_bound_to_the_loopback"
TOKEN = "tests/cli/page/test_app.py::test_without_the_token_everything_is_missing"
BOUND = f"{HERE}::test_what_a_command_serves_is_bound_to_the_loopback_unless_told_otherwise"

LISTENERS = {
    "_support/sockets.py: bound: bind": (BOUND,),
    "emulator/server/listener.py: Listener.bind: listen": (EVERY_PORT, BROWSER),
    "emulator/server/listener.py: Listener.listen: listen": (EVERY_PORT, BROWSER),
    "emulator/server/listener.py: Listener.listen: create_server": (EVERY_PORT, BROWSER),
    "emulator/server/server.py: Server.__aenter__: bind": (EVERY_PORT, BOUND),
    "emulator/server/server.py: Server.accept: listen": (EVERY_PORT,),
    "emulator/server/server.py: Server._listen_after: listen": (EVERY_PORT,),
    "cli/callback/serve.py: _Server.startup: create_server": (PUBLIC, BOUND),
    "cli/callback/serve.py: _Server.startup: listen": (PUBLIC, BOUND),
    "cli/page/server.py: LocalPageServer.__aenter__: create_server": (PAGES, PAGES_BOUND, TOKEN),
    "testing/conformance/crowd_server.py: CrowdServer.__enter__: create_server": (CONFORMANCE,),
    "testing/conformance/errors.py: full_port: bind": (CONFORMANCE,),
    "testing/conformance/errors.py: full_port: listen": (CONFORMANCE,),
    "testing/conformance/server.py: RawServer._listen: bind": (CONFORMANCE,),
    "testing/conformance/server.py: RawServer._listen: create_server": (CONFORMANCE,),
    "testing/conformance/server.py: RawServer._listen: listen": (CONFORMANCE,),
    "testing/conformance/server.py: refusing_port: bind": (CONFORMANCE,),
}

MESSAGES = {
    # what is sent, by the kinds of on_servers.SUBJECTS and STREAMS
    "jetstream/inbox.py: JetStreamInbox._publish: publish": ("inbox, new events", "inbox, quarantine"),
    "jetstream/archive.py: History._publish_again.again: publish": ("inbox, replayed events",),
    "jetstream/archive.py: Letters.requeue_one: publish": ("inbox, replayed events",),
    "jetstream/archive.py: publish: publish": ("inbox, replayed events",),
    "jetstream/archive.py: write_letter: publish": ("inbox, dead letters",),
    "jetstream/publisher.py: Publisher.publish: publish": (  # what the others give it
        "inbox, new events",
        "inbox, quarantine",
        "inbox, replayed events",
        "inbox, dead letters",
    ),
    "jetstream/publisher.py: Publisher.put: publish": ("inbox, records",),
    "jetstream/ownership.py: Ownership._say: publish": ("inbox, owners",),
    "jetstream/archive.py: Letters._subjects: request": ("commands of the servers",),
    "jetstream/partition.py: Reader._ask: publish": ("commands of the servers",),
    # what is subscribed
    "jetstream/nats_py.py: subscribe: subscribe": ("answers",),
    "jetstream/ownership.py: Ownership._listen: subscribe": ("inbox, owners",),
    "jetstream/publisher.py: Publisher.start: subscribe": ("answers",),
    "jetstream/partition.py: Reader.__aenter__: subscribe": ("answers",),
    # what is made there
    "jetstream/nats_py.py: add_stream: add_stream": ("inbox, events", "inbox, dead letters"),
    "jetstream/streams.py: Streams._created: add_stream": ("inbox, events", "inbox, dead letters"),
    "jetstream/streams.py: Streams._prepare: add_bucket": ("inbox, records",),
}
