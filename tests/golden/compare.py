"""Compare runs of every method with those of the golden file: accuracies, payload bytes and the server's arrays.

    python tests/golden/compare.py            # what differs; exit status 1 if anything does
    python tests/golden/compare.py --write    # renew the file

Each method runs two rounds on unequal classes and on shifted domains, with unlike models where it can have them, for
three seeds. Options beside the defaults run once each, and FedHe in simulated time, too, synchronously and
asynchronously, with one worker and with two. Bits hold for the versions and the kind of processor of the file: with
others nothing is compared, unless ``--anyway`` is given. NumPy's OpenBLAS has different kernels even for models of one
kind; here it has the same for all.
"""

import argparse
import hashlib
import json
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

FILE = Path(__file__).with_name("runs.json")
SCENARIOS = {
    "classes": {"dataset": "digits", "partition": "dirichlet:0.5", "models": "lenet5,mlp"},
    "domains": {"dataset": "rotated-digits", "models": "mlp,cnn1"},
}
ONE_MODEL = {"classes": "lenet5", "domains": "mlp"}
PARTS = {"classes": "lenet5,lenet5@0.5", "domains": "cnn1,cnn1@0.5"}
OWN = {"feddf": {"feddf.server-steps": 4}, "fedmd": {"fedmd.pretrain-epochs": 1, "fedmd.pretrain-private-epochs": 1}}
SEEDS = 3
TIMED = {
    "seconds": {"client-seconds": "1,1.7,4", "fedhe.mode": "async"},
    "speed": {"client-speed": "1,0.2,0.5", "client-mbits": "10:1", "fedhe.mode": "async"},
    "links": {"client-seconds": "1", "client-mbits": "1:0.02,10", "client-latency": "0.1", "fedhe.mode": "async"},
    "together": {"client-speed": "1,0.2", "client-mbits": "1:0.02,10", "client-latency": "0.1"},
}
"""Settings of runs in simulated time, of FedHe on unequal classes; their last number is of workers, not a seed."""
VARIANTS = {
    "fedavg/median": {"robust": "median", "moments": "kept", "optimizer": "amsgrad"},
    "fedprox/tuned": {"fine-tune-epochs": 1, "fedprox.exchange-every": 2},
    "heterofl/tuned": {"fine-tune-epochs": 1},
    "fd/async": {"fd.mode": "async", "client-seconds": "1,2,3"},
    "fd/multikrum": {"robust": "multikrum:1", "projection": "pcgrad"},
    "fedproto/async": {"fedproto.mode": "async", "client-seconds": "1,2,3"},
    "fedproto/trimmed": {"robust": "trimmed:0.34", "fedproto.predict": "prototype"},
    "fedgh/async": {"fedgh.mode": "async", "client-seconds": "1,2,3"},
    "chfl/avgkd": {"chfl.mode": "avgkd", "chfl.reduce": "sum"},
    "fedhenn/homogeneous": {"fedhenn.mode": "homogeneous", "models": "lenet5"},
    "lgfedavg/body": {"lgfedavg.mode": "body", "models": "lenet5"},
    "dsfl/era": {"dsfl.aggregation": "era"},
    "fml/body": {"fml.share": "body", "fml.alpha": "0.9:0.3"},
    "fedhe/private": {"clipping-norm": 1.0, "noise-multiplier": 0.5, "payload-precision": "half"},
    "fedh2l/two": {"fedh2l.optimizers": "two", "fedh2l.teachers": 1, "fedh2l.public-labels": False},
}
"""Settings of runs on unequal classes with seed 0, by method and name."""


def versions() -> dict[str, str]:
    """Return what the bits depend on."""
    from hetfl_flwr.common.versions import environment

    found = environment()
    return {name: found[name] for name in ("torch", "numpy", "flwr", "processor")}


def outcome(case: tuple[str, str, int]) -> dict[str, object]:
    """Run one case and return what is compared."""
    from safetensors.numpy import load_file

    from hetfl_flwr import run
    from hetfl_flwr.methods import find

    method, scenario, seed = case
    server = find(method).strategy
    chosen = dict(SCENARIOS.get(scenario, SCENARIOS["classes"]))
    if not server.heterogeneous:
        chosen["models"] = (PARTS if server.parts else ONE_MODEL)["domains" if scenario == "domains" else "classes"]
    workers, own = 1, VARIANTS.get(f"{method}/{scenario}", {})
    if scenario in TIMED:
        chosen |= {**TIMED[scenario], "rounds": 5, "evaluate-every": 2}
        workers, seed = seed, 0
    settings = {"rounds": 2, "clients": 3, "local-batches": 2, "batch-size": 16, "public-fraction": 0.1, "seed": seed}
    with TemporaryDirectory() as folder:
        settings |= chosen | OWN.get(method, {}) | own
        result = run(method, out=f"{folder}/run", progress=False, workers=workers, settings=settings)
        clock = json.loads((result.folder / "rounds.jsonl").read_text().splitlines()[-1])["clock"]
        digest = hashlib.sha256()
        for name, array in sorted(load_file(result.folder / "knowledge.safetensors").items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        summary = result.summary
    return {
        "accuracy": summary["accuracy_per_client"],
        "payload": [summary["bytes_up"], summary["bytes_down"]],
        "server": digest.hexdigest()[:16],
        **({} if clock is None else {"clock": clock}),
    }


def name_of(case: tuple[str, str, int]) -> str:
    """Return a case's key in the file."""
    return "/".join(map(str, case))


def silent() -> None:
    """Keep a worker process from logging, and to one thread."""
    logging.disable(logging.CRITICAL)


def main() -> int:
    """Run all cases, and compare them with the file or write it."""
    parser = argparse.ArgumentParser(prog="python tests/golden/compare.py", description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", help="methods to run; default: all")
    parser.add_argument("--write", action="store_true", help="renew the file")
    parser.add_argument("--anyway", action="store_true", help="compare with other versions, too")
    arguments = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", FLWR_TELEMETRY_ENABLED="0")
    os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")  # not on import, by which pytest would hand it to processes
    from hetfl_flwr.methods import names

    held = json.loads(FILE.read_text()) if FILE.exists() else {"versions": versions(), "runs": {}}
    if held["versions"] != versions() and not arguments.anyway and not (arguments.write and not arguments.methods):
        print(f"not compared: the file was made with {held['versions']}, this is {versions()}")
        return 2 if arguments.write else 0
    methods = arguments.methods or names()
    cases = [(method, scenario, seed) for method in methods for scenario in SCENARIOS for seed in range(SEEDS)]
    cases += [(*one.split("/"), 0) for one in VARIANTS if one.split("/")[0] in methods]
    cases += [("fedhe", scenario, workers) for scenario in TIMED for workers in (1, 2) if "fedhe" in methods]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), silent) as pool:
        found = dict(zip(map(name_of, cases), pool.map(outcome, cases), strict=True))
    there = {key: value for key, value in held["runs"].items() if not arguments.methods or key.split("/")[0] in methods}
    if arguments.write:
        runs = {**held["runs"], **found} if arguments.methods else found
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(runs[key])}" for key in sorted(runs))
        FILE.write_text(f'{{\n "versions": {json.dumps(versions())},\n "runs": {{\n{lines}\n }}\n}}\n')
        return 0
    differing = [key for key in sorted(there | found) if there.get(key) != found.get(key)]
    for key in differing:
        print(f"{key}: {there.get(key)} -> {found.get(key)}")
    print(f"{len(there | found) - len(differing)} of {len(there | found)} runs are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
