"""Windows and several GPUs, which no test here has: what would break there is looked for in the source itself."""

import ast
from collections.abc import Callable

from hostile import ROOT, source_nodes

UNIX_ONLY = {
    "vargen/runs/files.py": "locks, behind `fcntl is None`",
    "vargen/jobs/calls.py": "peak memory, behind `resource is None`",
    "specdecode/checks.py": "the size of memory, behind `hasattr`",
    "metrics/provenance.py": "the same",
    "specdecode/kernels/build.py": "whose file it is, behind `hasattr`",
    "vargen/base/http_clients.py": "the number of descriptors, behind an ImportError",
}
"""Modules that name what Windows lacks, and why that is well."""
LACKING = {
    *("fcntl", "pwd", "grp", "resource", "termios", "AF_UNIX", "SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGXFSZ"),
    *("fork", "forkpty", "geteuid", "getuid", "getpgid", "setsid", "killpg", "mkfifo", "sysconf", "uname", "nice"),
    *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "fchmod", "chown", "statvfs", "memfd_create", "pread", "pwrite"),
}


def found(is_wrong: Callable[[ast.AST], object]) -> set[str]:
    own = [each for each in source_nodes() if not each[0].startswith("integrations/")]
    return {f"{name}:{getattr(node, 'lineno', 0)}" for name, node in own if is_wrong(node)}


def test_what_windows_lacks_is_named_behind_a_check_alone():
    def is_lacking(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(each.name in LACKING for each in node.names)
        if isinstance(node, ast.ImportFrom):
            return node.module in LACKING
        home = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
        return home in ("os", "signal", "socket") and getattr(node, "attr", "") in LACKING

    assert {place.rpartition(":")[0] for place in found(is_lacking)} == set(UNIX_ONLY)


def test_text_is_read_and_written_as_utf8_or_is_ascii():
    """Elsewhere the encoding follows the system."""
    ascii_alone = {"vargen/video/drafters/video_head_folder.py", "vargen/demo/compare.py"}
    own_files = {"specdecode/kernels/build.py", "metrics/provenance.py"}

    def is_open(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr in ("read_text", "write_text") and not any(
            each.arg == "encoding" for each in node.keywords
        )

    assert {place.rpartition(":")[0] for place in found(is_open)} == ascii_alone | own_files
    sources = (ROOT / "specdecode" / "kernels").rglob("*.cpp")
    assert all(path.read_text().isascii() for path in sources)


def test_no_call_means_the_current_gpu_where_a_tensor_may_lie_on_another():
    """Streams, events, waits and moves name their device; a default one is that of the process."""
    one_device = {
        "vargen/training/run.py": "its device is cpu or cuda, the current one",
        "metrics/provenance.py": "names the machine",
    }
    silent = {"cuda", "record", "current_stream", "synchronize", "Stream", "get_rng_state", "max_memory_allocated"}
    silent |= {"reset_peak_memory_stats", "current_device", "mem_get_info", "empty_cache", "get_device_name"}

    def is_silent(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.args or node.keywords:
            return False
        called, home = node.func.attr, ast.unparse(node.func.value)
        return called in silent and (called in ("cuda", "record") or home == "torch.cuda")

    assert {place.rpartition(":")[0] for place in found(is_silent)} <= set(one_device)
