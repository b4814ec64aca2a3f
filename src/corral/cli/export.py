"""`corral export RUN TARGET`: a trained policy as an ONNX model, a policy file, or a folder for the Hugging Face
Hub."""

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corral import policy as policies
from corral.api import Result
from corral.certification.check import check
from corral.cli.flags import parse
from corral.errors import CorralError, require
from corral.policy import huggingface, onnx
from corral.policy.file import Policy
from corral.running import checkpoint
from corral.running.directory import RunDirectory
from corral.running.files import write_atomically


@dataclass(frozen=True)
class Config:
    """Write a trained policy for other programs: what TARGET ends in decides how.

    FILE.onnx is a model for onnxruntime and others, checked against the policy after it is made. FILE.npz is the policy
    file, which stands alone (`corral.policy.load`). Anything else is a folder in the layout of the Hugging Face Hub:
    README.md with a model index, config.json, the policy file, and an ONNX model where onnx is installed. Nothing is
    sent anywhere.
    """

    run: Path = field(metadata={"positional": True})
    """Folder of the run, a policy file or a checkpoint."""
    target: Path = field(metadata={"positional": True})
    """FILE.onnx, FILE.npz or a folder."""
    sampled: bool = False
    """ONNX: draw actions as in training, from noise that the model takes as a second input, instead of the most likely
    ones."""
    certificate: Path | None = None
    """A certificate of this policy, which is checked and goes with it; into a model only if it is about the actions that the
    model takes, drawn ones (--sampled) or the most likely (`corral certify --deterministic`)."""
    json: bool = False
    """Print what was written as JSON."""


def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "export")
    data, policy = _standalone(config.run)
    certificate, about_model = None, False
    if config.certificate is not None:
        found = check(config.certificate, config.run)
        require(
            found.policy["sha256"] == policy.sha256,
            f"{config.certificate} is about a file that does not stand alone, such as a checkpoint, which is written anew: "
            "export FILE.npz and certify that",
        )
        certificate = config.certificate.read_text(encoding="utf-8")
        about_model = (found.policy["actions"] == "drawn") == config.sampled
        require(
            about_model or config.target.suffix != ".onnx",
            f"{config.certificate} is about actions that are {found.policy['actions']}, and the model would take others: "
            + ("leave out --sampled" if config.sampled else "add --sampled, or certify with --deterministic"),
        )
    kind = config.target.suffix
    told: dict[str, Any] = {"target": str(config.target), "policy_sha256": policy.sha256}
    if kind == ".npz":
        write_atomically(config.target, data)
    elif kind == ".onnx":
        told |= _write_onnx(config.target, policy, config.sampled, certificate)
    else:
        require(
            not config.target.is_file(), f"{config.target} is a file: name a folder, or one that ends in .onnx or .npz"
        )
        told |= _write_folder(config, data, policy, certificate, about_model)
    if config.json:
        print(json.dumps(told))
    else:
        print(f"{config.target}: the policy {policy.sha256[:12]} of {policy.about['env']['name']}")
        if "checked_by" in told:
            print(
                f"checked by {told['checked_by']}: no number differs by more than {told['difference']:.1e} from the policy's"
            )
    return 0


def _standalone(run: Path) -> tuple[bytes, Policy]:
    """The bytes of a policy file that stands alone, and the policy: the run's own file, or a new one of a checkpoint or of
    an older run."""
    source = RunDirectory.find_one(run).policy_file() if run.is_dir() else run
    if "policy" in checkpoint.read_meta(source):
        return source.read_bytes(), policies.load(source)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.npz"
        Result.load(run).save(made)
        return made.read_bytes(), policies.load(made)


def _write_onnx(path: Path, policy: Policy, sampled: bool, certificate: str | None) -> dict[str, Any]:
    """Make the model, check it, and only then write it."""
    data = onnx.model(policy, sampled, certificate)
    difference, name = onnx.check(data, policy, sampled)
    write_atomically(path, data)
    return {"difference": difference, "checked_by": name}


def _write_folder(
    config: Config, data: bytes, policy: Policy, certificate: str | None, about_model: bool
) -> dict[str, Any]:
    run = RunDirectory(config.run if config.run.is_dir() else RunDirectory.folder_of(config.run))
    algorithm = run.config().algo.name.upper() if run.exists else "policy"
    folder = config.target
    write_atomically(folder / huggingface.WEIGHTS, data)
    try:
        told = _write_onnx(folder / huggingface.ONNX, policy, config.sampled, certificate if about_model else None)
    except CorralError as error:
        told = {"onnx": str(error)}
    measured = _measured(policy, run, certificate)
    for name, text in huggingface.files(policy, algorithm, measured, certificate).items():
        write_atomically(folder / name, text.encode())
    return told


def _measured(policy: Policy, run: RunDirectory, certificate: str | None) -> dict[str, float]:
    """Numbers for the model index: those of the certificate, else those of the last iteration of training."""
    if certificate:
        content = json.loads(certificate)
        costs = {f"mean_cost_{c['name']}": c["mean"] for c in content["constraints"]}
        highs = {f"cost_{c['name']}_at_most": c["high"] for c in content["constraints"]}
        return {"mean_reward": content["earned"]["mean"]} | costs | highs
    rows = run.metrics() if run.exists else None
    if rows is None or len(rows) == 0:
        return {}
    names = {"return": "mean_reward"} | {
        f"cost_{c['name']}": f"mean_cost_{c['name']}" for c in policy.about["constraints"]
    }
    return {new: float(rows[old][-1]) for old, new in names.items() if old in rows}
