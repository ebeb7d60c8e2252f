"""Break the product on purpose, one line at a time, and see that the tests notice.

    python tests/golden/breaks.py             # all breaks; exit status 1 if the tests miss one
    python tests/golden/breaks.py NAME ...    # some of them

Each break changes results or safety without an error. It is applied in a copy of the checkout, where the tests that
hold the behaviour are run; before that the same tests must pass in the copy as it is.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Break(NamedTuple):
    """A text that stands once in a file of the product, what replaces it, and the test that should fail then."""

    file: str
    text: str
    replacement: str
    test: str


HEAD_STEPS = """\
        body.eval()
        _, first_loss = train(samples, batches, of_head, head_loss)
        body.train()
"""
BODY_STEPS = """\
        head.requires_grad_(False)
        seen, mean_loss = train(samples, self.batches(round), of_body, body_loss)
        head.requires_grad_(True)
"""
NOISE = "rng.normal(0.0, self.noise_multiplier * self.clipping_norm, rows.shape)"
CLIPPED = "torch.renorm(torch.from_numpy(rows), p=2, dim=0, maxnorm=self.clipping_norm).numpy()"

# fmt: off
BREAKS = {
    "loss-sign": Break("clients/fml.py", "(1 - part) * kl_divergence", "(part - 1) * kl_divergence",
        "tests/methods/test_fml.py::test_two_rounds_equal_a_slow_twin"),
    "fedrep-order": Break("clients/fedrep.py", HEAD_STEPS + BODY_STEPS, BODY_STEPS + HEAD_STEPS,
        "tests/methods/test_averaging.py::test_two_rounds_equal_a_loop_by_hand[fedrep, alone]"),
    "heterofl-rate": Break("clients/heterofl.py", "one / rate for", "one for",
        "tests/methods/test_heterofl.py::test_one_step_by_hand"),
    "fedtgp-margin": Break("strategies/fedtgp.py", "(apart + margin * own)", "apart",
        "tests/methods/test_trained_prototypes.py::test_fedtgp_s_training_equals_a_slow_twin"),
    "moments-kept": Break("hetfl_flwr/node/holder.py", 'moments == "reset"', 'moments == "never"',
        "tests/methods/test_averaging.py::test_two_rounds_equal_a_loop_by_hand[lgfedavg]"),
    "equal-weights": Break("hetfl_flwr/weight_strategy.py", "[one.samples for one in kept]", "[1 for one in kept]",
        "tests/methods/test_averaging.py::test_two_rounds_equal_a_loop_by_hand[fedavg]"),
    "guard-mean": Break("hetfl_flwr/server/guard.py", "float(np.median(logs))", "float(np.mean(logs))",
        "tests/server/test_guard.py::test_a_size_is_far_from_the_median_of_all"),
    "clip-last": Break("hetfl_flwr/wire/privacy.py",
        f"clipped = {CLIPPED}\n        released: Rows = clipped + {NOISE}",
        f"rows = rows + {NOISE}\n        released: Rows = {CLIPPED}",
        "tests/wire/test_privacy.py::test_the_noise_has_the_deviation_that_was_asked_for"),
    "epsilon-rounds": Break("hetfl_flwr/wire/privacy.py", "sqrt(uploads) /", "sqrt(max(uploads - 1, 1)) /",
        "tests/wire/test_privacy.py::test_epsilon_is_that_of_the_definition"),
    "older-checkpoint": Break("hetfl_flwr/runs/checkpoint.py", "in checkpoints(run_folder):",
        "in checkpoints(run_folder)[::-1]:",
        "tests/runs/test_damage.py::test_a_client_s_damaged_state_stops_the_resume_and_names_what_to_do"),
    "checksum": Break("hetfl_flwr/common/blobs.py", "if checksum != _checksum(", "if not _checksum(",
        "tests/common/test_blobs.py::test_each_single_bit_that_changes_is_noticed"),
    "rows-from-1": Break("clients/base_answers.py", "pool.samples, asked)", "pool.samples, asked - 1)",
        "tests/methods/test_fedmd.py::test_three_rounds_equal_a_slow_twin"),
    "measured-on-train": Break("hetfl_flwr/client.py", "return measure(self.predictor(), node.data.test)",
        "return measure(self.predictor(), node.data.train)",
        "tests/runs/test_loading.py::test_what_is_read_back_of_a_client_measures_what_the_table_says"),
    "test-rows-trained": Break("hetfl_flwr/data/clients.py", "share[tested + validated :]",
        "share[: len(share) - tested - validated]",
        "tests/data/test_data.py::test_the_rows_of_all_clients_are_disjoint_and_are_all_there_is"),
    "foreign-statistics": Break("hetfl_flwr/data/scaling.py", "tuple(rows.tolist())",
        "tuple(range(len(arrays.labels)))",
        "tests/data/test_tables.py::test_columns_are_standardised_on_the_own_training_rows_alone"),
    "best-on-test": Break("hetfl_flwr/node/holder.py", '{"own": "validation-accuracy"', '{"own": "accuracy"',
        "tests/methods/test_clients_base.py::test_the_best_model_is_not_chosen_by_test_samples"),
    "last-model": Break("hetfl_flwr/node/holder.py", "best := under(BEST, self._saved.tensors)", "best := {}",
        "tests/runs/test_loading.py::test_what_is_read_back_of_a_client_measures_what_the_table_says"),
    "column-order": Break("simulations/inference/inputs.py", "np.hstack(blocks)", "np.hstack(blocks[::-1])",
        "tests/simulations/inference/test_predict.py::TestTables::test_rows_get_the_classes_and_scores_of_the_model"),
    "sweep-seed": Break("simulations/studies/sweeps.py", '"output-dir": str(folder),',
        '"output-dir": str(folder), "seed": 0,',
        "tests/simulations/studies/test_sweep.py::test_a_run_is_called_by_its_values_and_left_with_nothing_to_guess"),
    "run-of-others": Break("simulations/studies/jobs.py", "self.config.to_flat().items() if", "self.asked.items() if",
        "tests/simulations/studies/test_sweep.py::"
        "test_a_run_with_another_value_of_a_key_that_a_job_leaves_open_is_not_its_run"),
    "untuned-row": Break("simulations/studies/reproduce/page.py", 'f"{row}{NOT_TUNED}" if row in asked else row', "row",
        "tests/simulations/studies/test_reproduce.py::test_a_page_has_one_row_a_tuned_method_and_its_gain_without"),
    "recorded-twice": Break("simulations/studies/reproduce/command.py", "in task.left(runs):", "in runs:",
        "tests/simulations/studies/test_reproduce.py::"
        "test_a_table_is_run_once_and_written_with_its_command_and_picture"),
    "bytes-once": Break("hetfl_flwr/runs/ledger.py", "_total(trained.traffic.values())",
        "_total([*trained.traffic.values()][:1])",
        "tests/runs/test_results.py::test_the_figures_of_a_run_by_hand"),
    "median-axis": Break("hetfl_flwr/learning/aggregation.py", "np.inf), axis=0), has", "np.inf), axis=-1), has",
        "tests/methods/test_robust.py::test_weights_by_hand"),
    "key-lie": Break("hetfl_flwr/server/registration.py", "if self._keys and number != listed:",
        "if False and number != listed:",
        "tests/server/test_start.py::test_a_node_is_taken_in_only_as_the_client_that_its_key_is_listed_for"),
    "clock-links": Break("simulations/engine/exchange.py", "return delay + 8e-6 * wire /", "return delay + 0 * wire /",
        "tests/server/test_rounds.py::test_a_link_takes_the_time_of_the_bytes_on_the_wire"),
}
# fmt: on


def tested(copy: Path, tests: set[str]) -> tuple[bool, str]:
    """Run tests in a copy; return whether they pass, or cannot even begin, and the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *sorted(tests)]
    ran = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True)
    if ran.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: {ran.stdout}{ran.stderr}")
    lines = ran.stdout.splitlines()
    failed = next((line.split()[1] for line in lines if line.startswith("FAILED tests/")), "")
    return not failed, failed


def caught(copy: Path, one: Break) -> tuple[bool, str]:
    """Apply a break in a copy and run its tests; return whether an assertion notices, and in which test."""
    path = copy / one.file
    content = path.read_text()
    if content.count(one.text) != 1:
        sys.exit(f"{one.file}: found {content.count(one.text)} times, expected once: {one.text}")
    path.write_text(content.replace(one.text, one.replacement))
    passed, failed = tested(copy, {one.test})
    path.write_text(content)
    return not passed, failed


def main() -> int:
    """Run the breaks that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BREAKS))
    names = parser.parse_args().names or list(BREAKS)
    missed = 0
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / "checkout"
        for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]:
            if (ROOT / name).exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        passed, failed = tested(copy, {BREAKS[name].test for name in names})
        if not passed:
            sys.exit(f"{failed} fails without a break")
        for name in names:
            noticed, failed = caught(copy, BREAKS[name])
            missed += not noticed
            print(f"{name:20} {f'caught   {failed}' if noticed else 'missed'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
