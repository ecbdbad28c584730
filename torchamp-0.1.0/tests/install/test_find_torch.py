"""What the build reads from a torch, without importing it."""

import pathlib

import pytest
from installed import ROOT, run

SCRIPT = """
include("{root}/cmake/TorchampFindTorch.cmake")
_torchamp_read_cxx11_abi("{torch}" abi)
file(WRITE "{torch}/abi" "${{abi}}")
"""


@pytest.mark.parametrize(
    "string, abi", [("Ss", "0"), ("NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE", "1")]
)
def test_the_cxx11_abi_is_that_of_c10_error(string, abi, tmp_path: pathlib.Path) -> None:
    """A libc10.so of the old ABI has names of the new std::string too, from the C++ library."""
    (tmp_path / "lib").mkdir()
    symbols = f"_ZN3c105ErrorC1ENS_14SourceLocationE{string}", "_ZNSt7__cxx1112basic_stringIcE"
    (tmp_path / "lib" / "libc10.so").write_bytes("\0".join(symbols).encode() + b"\0")
    script = tmp_path / "script.cmake"
    script.write_text(SCRIPT.format(root=ROOT, torch=tmp_path))
    run("cmake", "-P", script)
    assert (tmp_path / "abi").read_text() == abi
