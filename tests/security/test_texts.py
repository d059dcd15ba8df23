"""What is recorded and printed: no secrets, and nothing that a terminal obeys."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.parallel import ItemError
from espnet3.parallel.messages import masked, printable
from espnet3.parallel.records import ItemFailure
from tests.habits import rows

COMMAND = ("-c", "from espnet3_parallel.command import main; main()")
SECRET = "hunter2"
SECRETS = [
    f"redis://:{SECRET}@host/0",
    f"OperationalError: cannot connect to amqp://u:x@{SECRET}@host",
    f"Authorization: Basic {SECRET}==",
    f"curl -H 'Authorization: token {SECRET}' x",
    f"Cookie: sid=1; b={SECRET}",
    f"bearer {SECRET}{SECRET}",
    f'--password "a {SECRET}" x',
    f"--token={SECRET}",
    f"--hub-token {SECRET} rest",
    f"  password: a {SECRET}",
    f'{{"password": "{SECRET}"}}',
    f"{{'api_key': 'a b {SECRET}'}}",
    f'{{\\"password\\": \\"{SECRET}\\"}}',
    f"export DB_PASS={SECRET}",
    f"--export=ALL,API_KEY={SECRET}",
    f"SENTRY_DSN=https://{SECRET}@x",
    f"accessToken={SECRET}",
    f"x?X-Amz-Signature={SECRET}&y=1",
    f"-----BEGIN RSA PRIVATE KEY-----\nMII{SECRET}\n-----END RSA PRIVATE KEY-----",
    "hf_" + SECRET + "aB" * 14,
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + SECRET * 5,
    "xoxb-1234567890-" + SECRET,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + SECRET,
]
ORDINARY = [
    "author: me, authority=3, authors=['a']",
    "tokenizer=bpe token_list: tokens.txt n_tokens=5 max_tokens: 7 bpe_token_type=bpe",
    "pad_token='<pad>' eos_token: <eos> --token_type bpe --tokenizer x",
    "cookiecutter=1 keyboard=2 monkey: banana secretary=x public_key=y",
    "unknown token: <unk>; unexpected token ','",
    "    token = tokenizer.encode(text)",
    "http://host:8080/a@b ssh://git@github.com/x git@github.com:x/y.git",
    "parallel.options.password: must be a text",
    "the bearer of news is in a token ring, and has no password",
    "hf_wav2vec2large sk-learn task-1234567890123456",
]
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\x08\r\x00\x7f\u202e\u2066\u200f"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SCRIPT = """
import os
import sys
from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel
class Provider(EnvironmentProvider):
    def build_env_local(self):
        return {}
class Runner(BaseRunner):
    @staticmethod
    def forward(idx, **env):
        if "QUIET" not in os.environ:  # what an item prints where it runs is its own
            print("printed", TEXT, flush=True)
        raise ValueError(TEXT)

TEXT = "[/data/x.wav] SECRETS" + ESCAPES
if __name__ == "__main__":
    set_parallel({"env": "local", "n_workers": 2})
    config = {"db": SECRETS, "nested": [{"password": "hunter2"}]}
    Runner(Provider(config), output_dir=sys.argv[1], on_error="record", async_mode="detached" in sys.argv)(range(2))
"""


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_in_a_text_is_masked(text: str) -> None:
    """Addresses, headers, options, assignments, quoted values and keys of known forms are masked, once and for all."""
    safe = masked(f"before\n{text} after")
    assert SECRET not in safe and "EXAMPLE" not in safe and "***" in safe
    assert safe.startswith("before\n")
    assert masked(safe) == safe


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_text_stays(text: str) -> None:
    """Tokenizers, authors, lines of code and addresses without a password are as they were."""
    assert masked(text) == text


def test_values_of_secret_names_are_masked_anywhere() -> None:
    """Of nested values, command lines and Kubernetes' pairs each value of a secret's name is masked, and no other."""
    given = {
        "auth": {"a": 1},
        "list": [{"hubToken": "y", "n_tokens": 3, "use_auth_token": True}],
        "argv": ["--password", "a b", "--x", "y"],
        "env": [{"name": "API_TOKEN", "value": "y"}],
        "cookie": "c",
        "dsn": "d",
        "pad_token": "<pad>",
        "author": "me",
    }
    assert masked(given) == given | {
        "auth": "***",
        "list": [{"hubToken": "***", "n_tokens": 3, "use_auth_token": True}],
        "argv": ["--password", "***", "--x", "y"],
        "env": [{"name": "API_TOKEN", "value": "***"}],
        "cookie": "***",
        "dsn": "***",
    }


def test_a_text_of_any_length_is_masked_in_time_that_grows_with_it() -> None:
    """Texts made to be searched again and again take moments: with a square of their length it would be hours."""
    for part in (
        "token ",
        "a",
        "-",
        '"',
        "://a:",
        "pass\\",
        "-----BEGIN A-----",
        "bearer ",
        "?key",
        "eyJ",
        " \n",
    ):
        masked(part * 50_000 + "token")


def run_of(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    """Run items that raise, print and are given secrets and escapes, with a command line that holds one."""
    script = folder / "script.py"
    secrets = f"redis://:{SECRET}@host"
    script.write_text(
        SCRIPT.replace("ESCAPES", repr(ESCAPES))
        .replace('"db": SECRETS', f'"db": {secrets!r}')
        .replace("SECRETS", secrets)
    )
    command = [sys.executable, str(script), str(folder / "run"), *how, "--password", f"a {SECRET}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("how", rows(["driver", "detached"], ["detached"]))
def test_neither_files_nor_verbs_give_secrets_or_escapes_away(how: str, tmp_path: Path) -> None:
    """Of a run with both in its config, command, exceptions and prints, no file of ours and no verb shows either."""
    done = run_of(tmp_path, how)
    run = str(tmp_path / "run")
    if how == "detached":
        subprocess.run([sys.executable, *COMMAND, "wait", run], check=False, capture_output=True)
        subprocess.run([sys.executable, *COMMAND, "merge", run], check=True, capture_output=True)
    else:
        assert not OBEYED.search(done.stderr) and SECRET not in done.stderr
    specs = ("shard.", "detached", "log", "runner.json")  # a job's arguments, and the user's own text
    files = [
        path
        for path in Path(run).rglob("*")
        if path.is_file() and not any(s in str(path.relative_to(run)) for s in specs)
    ]
    assert {"run.json", "errors.jsonl", "events.jsonl"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    verbs = [
        ["status"],
        ["report", "-o", "-"],
        ["report", "--format", "json"],
        ["watch", "--json"],
        ["replay"],
    ]
    verbs += [["logs"]] if how == "detached" else []
    for verb, *options in verbs:
        more = ["0"] if verb == "replay" else []
        said = subprocess.run(
            [sys.executable, *COMMAND, verb, run, *more, *options],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "QUIET": "1"},
        )
        text = said.stdout + said.stderr
        assert not OBEYED.search(text), (verb, text)
        # the exception of `replay` is the user's own, here and now
        assert SECRET not in text or verb == "replay", (verb, text)


def test_watch_draws_texts_as_they_are_on_a_terminal(tmp_path: Path) -> None:
    """A message that looks like mark-up is shown, not read, and none of its escapes reaches the terminal."""
    pytest.importorskip("rich", reason="what draws it")
    run_of(tmp_path, "driver")
    driver, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "watch", str(tmp_path / "run")], stdin=terminal, stdout=terminal, stderr=terminal,
        env={**os.environ, "COLUMNS": "200", "LINES": "50", "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    said = b""
    while True:
        try:
            part = os.read(driver, 1 << 16)
        except OSError:  # its other end is closed
            break
        if not part:
            break
        said += part
    os.close(driver)
    assert process.wait() == 0, said
    text = said.decode()
    assert "[/data/x.wav]" in text and "Traceback" not in text
    assert "\x1b]0;" not in text and "\x9b" not in text and "\u202e" not in text


def test_errors_name_what_a_terminal_would_obey() -> None:
    """The text of an item's error and its record have escapes named and secrets masked; newline and tab stay."""
    failure = ItemFailure(0, "ValueError", f"a\n\tb {ESCAPES} --token=x", "", 1, f"1{ESCAPES}")
    for text in (str(ItemError(failure)), repr(failure), printable(ESCAPES)):
        assert not OBEYED.search(text) and "\\u001b" in text and "\\u202e" in text
    assert "a\n\tb" in str(ItemError(failure)) and "--token=***" in str(ItemError(failure))
