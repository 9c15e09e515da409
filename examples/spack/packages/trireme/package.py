"""A recipe of trireme for Spack:
    spack repo add examples/spack
    spack install trireme +mpi ^openmpi
The source is the checkout in which the recipe lies: spack dev-build, or `spack develop --path . trireme@main`."""

from spack.package import *


class Trireme(CMakePackage):
    """GPT training with composed tensor, pipeline and data parallelism."""

    license("Apache-2.0")

    version("main")

    variant("mpi", default=True, description="ranks under mpirun and srun")
    variant("onednn", default=True, description="matrix products in fp32 by oneDNN")
    variant("sentencepiece", default=True, description="SentencePiece tokenizers")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.18:", type="build")
    depends_on("libyaml")
    depends_on("pcre2")
    depends_on("zstd")
    depends_on("zlib-api")
    depends_on("xxhash")
    depends_on("mpi", when="+mpi")
    depends_on("onednn@2:", when="+onednn")
    depends_on("sentencepiece", when="+sentencepiece")

    build_targets = ["installed"]

    def cmake_args(self):
        names = {"mpi": "MPI", "onednn": "oneDNN", "sentencepiece": "SentencePiece"}
        without = [name for variant, name in names.items() if self.spec.satisfies("~" + variant)]
        return [self.define("TRIREME_WITHOUT", without)]

    def test_version(self):
        """the program says what it was built with"""
        Executable(self.prefix.bin.trireme)("--version")
