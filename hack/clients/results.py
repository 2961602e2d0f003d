"""Collects the results of the checks, and compares what a client gets with and without the gateway."""

import contextlib
import re
import traceback


class Results:
    """The rows of the table."""

    def __init__(self):
        self.rows = []

    @contextlib.contextmanager
    def case(self, server, client, name):
        """Records whether the block passes. The block may append notes to the list that it gets."""
        notes = []
        try:
            yield notes
            passed = True
        except Exception as error:  # pylint: disable=broad-except
            passed = False
            text = f"{type(error).__name__}: {error}".strip()
            notes.append(text.splitlines()[0][:300])
            traceback.print_exc()
        self.rows.append((server, client, name, passed, "; ".join(notes)))
        print(f"  {'pass' if passed else 'FAIL'}  {server:13} {client:17} {name}  {'; '.join(notes)}", flush=True)

    def print_table(self):
        """Prints one row per server and client, and then each failure."""
        groups = {}
        for server, client, _, passed, _ in self.rows:
            passes, failures = groups.get((server, client), (0, 0))
            groups[server, client] = (passes + passed, failures + (not passed))
        print(f"\n{'server':14} {'client':18} {'passed':>6} {'failed':>6}")
        for (server, client), (passes, failures) in groups.items():
            print(f"{server:14} {client:18} {passes:6} {failures:6}")
        failed = [row for row in self.rows if not row[3]]
        for server, client, name, _, note in failed:
            print(f"FAIL {server}, {client}: {name}: {note}")
        print(f"{len(self.rows) - len(failed)} of {len(self.rows)} checks passed")
        return not failed


def outcome(call, address):
    """What a client gives its caller: the value, or the error without the address of the server."""
    try:
        return ("value", repr(call(address)))
    except Exception as error:  # pylint: disable=broad-except
        text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", str(error))
        return (type(error).__name__, text)


def same_outcome(notes, call, direct, gateway):
    """Compares what the client gives with and without the gateway."""
    expected, found = outcome(call, direct), outcome(call, gateway)
    assert found == expected, f"direct {expected}, gateway {found}"
    if expected[0] != "value":
        notes.append(f"as without the gateway: {expected[0]}: {expected[1].splitlines()[0][:80]}")
