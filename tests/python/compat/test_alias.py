"""The alias: checks for apex that succeed, and identities of modules and objects."""

import copy
import importlib
import importlib.metadata
import importlib.util
import io
import pickle
import pkgutil
import sys
import textwrap

import pytest
import torch

import torchamp
from torchamp.compat import alias

MODULES = [
    "apex",
    "apex.amp",
    "apex.amp.__version__",
    "apex.amp._amp_state",
    "apex.amp._initialize",
    "apex.amp.amp",
    "apex.amp.frontend",
    "apex.amp.handle",
    "apex.amp.rnn_compat",
    "apex.amp.scaler",
    "apex.fp16_utils",
    "apex.multi_tensor_apply",
    "apex.normalization",
    "apex.normalization.fused_layer_norm",
    "apex.optimizers",
    "apex.parallel",
    "apex.parallel.LARC",
    "apex.parallel.distributed",
    "amp_C",
    "apex_C",
]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_found_and_imported_by_name(name):
    assert importlib.util.find_spec(name) is not None
    module = importlib.import_module(name)
    assert sys.modules[name] is module
    assert module is importlib.import_module(alias.target_of(name))
    assert module.__file__ and module.__spec__ is not None


@pytest.mark.parametrize("name", ["apex.amp", "apex.optimizers", "apex.parallel", "amp_C"])
def test_a_name_can_be_probed_before_it_is_imported(python, name):
    said = python(
        "-c",
        "import torchamp, importlib.util as u; torchamp.install_as_apex();"
        f"spec = u.find_spec({name!r}); print(spec.name, spec.origin)",
    )
    assert said.startswith(name) and alias.target_of(name).rpartition(".")[2] in said


def test_importing_torchamp_aliases_nothing(python):
    python("-c", "import torchamp, apex", expect=1)
    said = python(
        "-c",
        "import torchamp, torchamp.amp, torchamp.optimizers, sys;"
        "print([m for m in sys.modules if 'apex' in m.split('.') or 'torchamp.compat' in m])",
    )
    assert said.strip() == "[]"


def test_the_package_has_the_attributes_of_a_package():
    import apex

    assert apex.__version__ == "0.1"
    assert apex.__path__ and apex.amp.__path__
    found = {module.name for module in pkgutil.iter_modules(apex.__path__)}
    assert {"amp", "optimizers", "parallel"} <= found
    walked = {module.name for module in pkgutil.walk_packages(apex.__path__, "apex.")}
    assert {"apex.optimizers.fused_adam", "apex.parallel.LARC"} <= walked


def test_importing_apex_alone_makes_its_packages_reachable(python):
    python(
        "-c",
        "import torchamp; torchamp.install_as_apex(); import apex;"
        "apex.amp.initialize, apex.parallel.DistributedDataParallel, apex.optimizers.FusedAdam;"
        "apex.normalization.FusedLayerNorm, apex.fp16_utils.network_to_half;"
        "apex.multi_tensor_apply.multi_tensor_applier",
    )


def test_importlib_metadata_knows_a_version():
    import apex

    assert importlib.metadata.version("apex") == apex.__version__
    assert importlib.metadata.metadata("apex")["Name"] == "apex"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("apex-of-somebody-else")


@pytest.mark.parametrize("name", ["apex.transformer", "apex.amp.nothing", "apex_C.sub", "apexx"])
def test_what_is_not_there_is_not_found(name):
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module(name)


def test_installing_twice_installs_once():
    before = list(sys.meta_path)
    torchamp.install_as_apex()
    assert sys.meta_path == before


def test_a_model_is_pickled_by_a_name_that_resolves_without_the_alias(python, tmp_path):
    from apex.normalization import FusedLayerNorm

    file = tmp_path / "model.pt"
    torch.save(torch.nn.Sequential(FusedLayerNorm(4)), file)
    python("-c", f"import torch; torch.load({str(file)!r}, weights_only=False)")


def test_a_pickle_of_apexs_names_loads():
    from apex.normalization.fused_layer_norm import FusedLayerNorm

    ours = pickle.dumps(FusedLayerNorm, protocol=0)
    theirs = ours.replace(b"torchamp.compat.apex", b"apex")
    assert theirs != ours and pickle.loads(theirs) is FusedLayerNorm


def test_classes_are_one_under_both_names_and_survive_copies():
    from apex.parallel import SyncBatchNorm

    from torchamp.compat.apex.parallel.sync_batchnorm import SyncBatchNorm as TARGET

    assert SyncBatchNorm is TARGET
    file = io.BytesIO()
    torch.save(copy.deepcopy(SyncBatchNorm(3)), file)


def test_a_folder_called_apex_is_no_apex(python, tmp_path):
    (tmp_path / "apex" / "examples").mkdir(parents=True)
    said = python("-c", "import torchamp; torchamp.install_as_apex(); import apex; print(apex)")
    assert "torchamp.compat.apex" in said


def test_nothing_but_the_entries_imports_compat():
    import pathlib

    root = pathlib.Path(torchamp.__file__).parent
    importers = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if "torchamp.compat" in file.read_text() and "compat" not in file.relative_to(root).parts
    }
    assert importers == {"__init__.py", "apex.py"}


REAL = {
    "apex/__init__.py": "from apex import optimizers\n__version__ = 'real'\nwho = 'real'\n",
    "apex/optimizers/__init__.py": "class FusedAdam: who = 'real'\n",
    "apex/fp16_utils/__init__.py": "raise ImportError('no extension')\n",
    "apex/mlp/__init__.py": "raise ImportError('no extension')\n",
    "apex/transformer/__init__.py": "who = 'real'\n",
    "apex_C.py": "def flatten(tensors): return 'real'\n",
    "apex-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: apex\nVersion: 9.9\n",
}


@pytest.fixture
def real_apex(tmp_path):
    for name, text in REAL.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


CHECKS = """
    import apex
    assert apex.__version__ == apex.who == "real"
    assert apex.optimizers.FusedAdam.who == "real"
    from apex.optimizers import FusedAdam, FusedSGD
    assert FusedAdam.who == "real" and FusedSGD.__module__.startswith("torchamp.compat")
    import apex.transformer
    assert apex.transformer.who == "real"
    from apex import amp, normalization, parallel
    assert amp.scale_loss is torchamp.amp.scale_loss
    assert apex.amp is amp and apex.parallel.LARC.LARC
    import apex_C, amp_C
    assert apex_C.flatten([]) == "real" and apex_C.unflatten.__module__.startswith("torchamp.")
    assert amp_C.multi_tensor_scale
    import importlib.metadata
    assert importlib.metadata.version("apex") == "9.9"
    assert apex.__spec__.loader.__class__.__name__ == "SourceFileLoader"
    for broken in ("apex.mlp", "apex.fp16_utils"):
        try:
            importlib.import_module(broken)
        except ImportError as error:
            assert str(error) == "no extension"
        else:
            raise AssertionError("the real module's error is hidden")
"""


@pytest.mark.parametrize("before", ["", "import apex, apex_C"], ids=["fresh", "imported"])
def test_a_real_apex_keeps_its_names_and_gets_what_it_lacks(python, real_apex, before):
    program = f"{before}\nimport torchamp\ntorchamp.install_as_apex()\n" + textwrap.dedent(CHECKS)
    python("-c", program)
