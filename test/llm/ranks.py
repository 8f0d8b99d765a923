# SPDX-License-Identifier: Apache-2.0
"""The example engine over processes: the text and the perplexity of one, where numerics.md promises
its bits. Usage: ranks.py LLM [LLM-openmpi] [LLM-mpich]; 77: no numpy, or no mpirun for any."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from small_models import TEXT, Model

LLM, JOINED = sys.argv[1], sys.argv[2:]
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "HYDRA_LAUNCHER": "fork"}


def mpirun(program):
    return shutil.which("mpirun." + program.rsplit("-", 1)[1])


PROGRAMS = [p for p in JOINED if mpirun(p)]
if not PROGRAMS:
    print("skipped: no MPI that the engine was compiled for")
    sys.exit(77)


def run(command, ranks=0, program=None):
    """ranks 0: without mpirun."""
    start = [mpirun(program), "-np", str(ranks), program, "--ranks"] if ranks else [LLM]
    return subprocess.run([*start, *command, "-t", "1"], capture_output=True, timeout=120,
                          check=False, env=ENVIRONMENT)


class Ranks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "model.gguf")
        self.text = os.path.join(self.folder.name, "text")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)

    def output(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_int8_row_has_the_bits_of_one_process(self):
        """Also with norms behind the products, biases, and a head that is the table."""
        for arch in ("mistral", "qwen2", "qwen3"):
            Model(arch, self.path, seed=7, tied=arch == "qwen2").write_folder(self.folder.name)
            how = [self.folder.name, "--quantize", "int8:pc", "--strategy", "int8-row"]
            text = [*how, "-p", "she sells", "-n", "24", "--ids"]
            expected = self.output([*how, "--perplexity", self.text]), self.output(text)
            for program in PROGRAMS:
                for ranks in (1, 2):
                    with self.subTest(arch=arch, ranks=ranks, program=program):
                        found = (self.output([*how, "--perplexity", self.text], ranks, program),
                                 self.output(text, ranks, program))
                        self.assertEqual(found, expected)

    def test_sums_in_order_of_rank_are_close(self):
        """int8-block and float: the same in every run, near the layers in double."""
        for arch in ("llama", "gemma3"):
            model = Model(arch, self.path, seed=2, tied=True, mixed=arch == "llama")
            expected = model.perplexity(model.encode(TEXT))
            for program in PROGRAMS:
                for strategy, bound in (("float", 2e-4), ("int8-block", 0.03)):
                    with self.subTest(arch=arch, strategy=strategy, program=program):
                        how = [self.path, "--perplexity", self.text, "--strategy", strategy]
                        first = self.output(how, 2, program)
                        self.assertEqual(first, self.output(how, 2, program))
                        self.assertLess(abs(float(first.split()[1]) / expected - 1), bound)

    def test_refusals(self):
        Model("llama", self.path)
        result = run([self.path, "-p", "x", "--ranks"])
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"without MPI", result.stderr)
        for program in PROGRAMS:
            with self.subTest(program=program):
                result = run([self.path, "-p", "x"], 3, program)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(b"3 ranks: the model has 2 heads of keys", result.stderr)
                result = run(["/nowhere.gguf", "-p", "x"], 2, program)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(b"/nowhere.gguf", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
