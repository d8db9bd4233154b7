"""Training on two machines: network namespaces with a cable between them, two processes on each."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from command_helpers import STREAM_FLAGS, wait_for_group_exit
from train_helpers import assert_same_run, finish_process, run_flags, spawn, wait_for_checkpoint

# The machines and their network cards.
CARD_BY_MACHINE = {f"minitrans-{os.getpid()}-{rank}": f"mt{os.getpid()}-{rank}" for rank in "01"}
TWO_MACHINE_FLAGS = "--trainer.accelerator cpu --trainer.devices 2 --trainer.num_nodes 2 --trainer.strategy ddp"


def run_ip_command(*command: str) -> None:
    subprocess.run(["ip", *command], check=True)


@pytest.fixture
def cable() -> Iterator[str]:
    """The end of the cable at the first machine; both machines, and the cable, are removed afterwards."""
    if os.system(f"(ip netns add mt{os.getpid()} && ip netns del mt{os.getpid()}) 2> /dev/null"):
        pytest.skip("it needs iproute2 and permission to create networks")
    try:
        for machine in CARD_BY_MACHINE:
            run_ip_command("netns", "add", machine)
        one, other = CARD_BY_MACHINE.values()
        run_ip_command("link", "add", one, "type", "veth", "peer", "name", other)
        for number, (machine, card) in enumerate(CARD_BY_MACHINE.items(), 1):
            run_ip_command("link", "set", card, "netns", machine)
            run_ip_command("-n", machine, "addr", "add", f"10.77.0.{number}/24", "dev", card)
            for name in (card, "lo"):
                run_ip_command("-n", machine, "link", "set", name, "up")
        yield one
    finally:
        for machine in CARD_BY_MACHINE:
            subprocess.run(["ip", "netns", "del", machine], check=False)


def start_two_node_training(corpus: Path, run_dir: Path, *flags: str) -> "list[Popen[str]]":
    """Start a training of 60 steps on both machines."""
    flags = (*TWO_MACHINE_FLAGS.split(), *STREAM_FLAGS.split(), *flags)
    command = "-m", "minitrans", "train", *run_flags(corpus, run_dir, *flags, max_steps=60)
    meet = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    return [
        spawn(*command, machine=machine, NODE_RANK=str(rank), GLOO_SOCKET_IFNAME=card, **meet)
        for rank, (machine, card) in enumerate(CARD_BY_MACHINE.items())
    ]


@pytest.mark.slow
def test_training_survives_a_cut_cable_and_resumes_after_a_crash(cable: str, corpus: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for process in start_two_node_training(corpus, whole):
        _, err = finish_process(process)
        assert "Warning" not in err  # PyTorch would warn of some settings that we chose

    one, other = start_two_node_training(corpus, broken)
    wait_for_checkpoint(broken, 7, one)
    first = next(iter(CARD_BY_MACHINE))
    run_ip_command("-n", first, "link", "set", cable, "down")
    time.sleep(10)
    assert one.poll() is other.poll() is None
    run_ip_command("-n", first, "link", "set", cable, "up")
    wait_for_checkpoint(broken, 28, one)
    os.killpg(other.pid, signal.SIGKILL)
    other.communicate()
    wait_for_group_exit(other.pid)
    _, err = finish_process(one, 2)
    assert "minitrans: error: a process of this training has ended, or the network" in err  # by either of the two

    for process in start_two_node_training(corpus, broken, "--resume"):
        finish_process(process)
    assert_same_run(whole, broken)
