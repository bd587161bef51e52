"""Parallel decoding between processes: the same tokens; failures and deaths are told with their reason, nothing hangs.

The worker's loop is mostly tested in a thread at the other end of a pipe; what only a process can do, with one.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import raised
from synthetic import GREEDY, MarkovTarget, decoded
from torch import Tensor
from warm import python

from specdecode.roles import TargetOutput
from specdecode.runs.parallel.channel import DraftChannel
from specdecode.runs.parallel.drafter import InTurnChannel
from specdecode.runs.parallel.loop import ParallelResult, decode_parallel
from specdecode.runs.parallel.two_processes import DrafterError, DraftProcess, PipeLink, RemoteDrafter
from specdecode.sampling import RandomStreams, SamplingConfig

sys.path.append(str(Path(__file__).parent))  # started processes get this path, too
import parallel_players as players
from served_drafters import served

SAMPLINGS = [GREEDY, SamplingConfig(temperature=1.0)]


class Hinting(MarkovTarget):
    """Gives a hint in its prefill."""

    give: Callable[[Tensor], None] | None = None

    def prefill(self) -> TargetOutput:
        if self.give is not None:
            self.give(torch.tensor([4, 2, 2**40]))
        return super().prefill()


def target_of(give: Callable[[Tensor], None] | None = None) -> Hinting:
    target = Hinting(players.target_table(), players.PROMPT, players.LENGTH)
    target.give = give
    return target


def parallel(
    channel: DraftChannel,
    sampling: SamplingConfig = GREEDY,
    prompt: Any = None,
    seed: int = 0,
    target: MarkovTarget | None = None,
) -> ParallelResult:
    return decode_parallel(
        target or target_of(), channel, max_new_tokens=players.LENGTH, sampling=sampling,
        streams=RandomStreams.from_seeds([seed]), draft_length=3, prompt=prompt,
    )  # fmt: skip


def check(result: ParallelResult, sampling: SamplingConfig = GREEDY, seed: int = 0) -> None:
    """Plain decoding's tokens, in the rounds that a drafter in the same process would have made."""
    assert torch.equal(result.tokens, decoded(target_of(), players.LENGTH, sampling, [seed]).tokens)
    in_turn = parallel(InTurnChannel(players.source), sampling, seed=seed)
    assert result.account.settled == in_turn.account.settled


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
def test_rows_follow_one_another_over_a_link(sampling):
    with served(players.build) as channel:
        for seed in (0, 5, 0):
            check(parallel(channel, sampling, seed=seed), sampling, seed)


def test_the_hint_travels():
    with served(players.build) as channel:
        for prompt in ("needs a hint", "needs none"):
            check(parallel(channel, target=target_of(channel.hint), prompt=prompt))
        raised(DrafterError, "ValueError: the hint is None", parallel, channel, prompt="needs a hint")


def test_the_drafters_errors_are_told_and_the_worker_lives_on(capfd):
    with served(players.build) as channel:
        with pytest.raises(DrafterError, match=r"^the drafter failed: FileNotFoundError: no such video: missing\.mp4$"):
            parallel(channel, prompt="missing")
        assert "Traceback" in capfd.readouterr().err
        check(parallel(channel))
    with served(players.build_badly) as channel:
        for _ in range(2):
            raised(DrafterError, "OSError: no weights here", parallel, channel)


class _Breaks(Hinting):
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        raise ArithmeticError("the target broke")


def test_answers_nobody_waits_for_any_more_are_not_mistaken_for_others():
    with served(players.build) as channel:
        with pytest.raises(ArithmeticError):  # the window ordered in this round is never collected
            parallel(channel, target=_Breaks(players.target_table(), players.PROMPT, players.LENGTH))
        check(parallel(channel, seed=2), seed=2)


def test_a_drafter_that_does_not_answer_is_given_up():
    ours, theirs = multiprocessing.Pipe()
    with RemoteDrafter(PipeLink(ours, timeout=0.05)) as channel:
        raised(DrafterError, r"cannot be reached: no answer within 0\.05 seconds", parallel, channel)
        theirs.close()
        raised(DrafterError, "cannot be reached", parallel, channel)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_serves_rows_and_its_death_is_told():
    with DraftProcess(players.build, timeout=600) as channel:
        pid = channel.pid
        for sampling in SAMPLINGS:
            check(parallel(channel, sampling), sampling)
        raised(DrafterError, "the drafter's process ended: killed by SIGKILL", parallel, channel, prompt="dies")
        raised(DrafterError, "killed by SIGKILL", parallel, channel)
    assert not is_alive(pid) and not multiprocessing.active_children()


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    """The new process runs the script again, which starts another one there."""
    script = tmp_path / "script.py"
    script.write_text(
        "from specdecode.runs.parallel.two_processes import DraftProcess\n"
        "def build(): pass\n"
        "channel = DraftProcess(build, timeout=600)\n"
        "channel.collect()\n"
    )
    places = {"PYTHONPATH": os.pathsep.join(sys.path)}  # what is started there is Python anew
    ended = subprocess.run(python(script), env={**os.environ, **places}, capture_output=True, text=True)
    assert ended.stderr.splitlines()[-1].endswith(
        'the drafter\'s process ended: exit code 1; a script that starts it needs if __name__ == "__main__":'
    )


def test_a_process_that_does_not_listen_is_ended(monkeypatch):
    monkeypatch.setattr("specdecode.runs.parallel.two_processes._SECONDS_TO_STOP", 0.2)
    with DraftProcess(players.build) as channel:
        pid = channel.pid
        os.kill(pid, signal.SIGSTOP)
    assert not is_alive(pid) and not multiprocessing.active_children()
