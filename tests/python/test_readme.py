# SPDX-License-Identifier: Apache-2.0
"""The quick starts of README.md in C++ and C compile, with the names declared that they leave open."""

import shutil
import subprocess

import pytest
from readme import ROOT, fragment, in_function

CPP = """#include <vector>
void step(quire::AttentionSpec spec, const quire::BatchBounds& bounds,
          const quire::BatchView& batch, const quire::AttentionParams& params,
          const std::vector<quire::TensorView>& q, const std::vector<quire::TensorView>& k,
          const std::vector<quire::TensorView>& v,
          const std::vector<quire::MutableTensorView>& out) {"""

C = """void step(quire_attention_spec spec, quire_kv_cache_options options, quire_batch_bounds bounds,
          quire_batch batch, const quire_tensor* q, const quire_tensor* k, const quire_tensor* v,
          quire_kv_source source, quire_attention_output output) {
  quire_backend* backend = NULL;
  quire_kv_cache* cache = NULL;
  quire_prepared_batch* prepared = NULL;
  quire_kv_cache_view layer;"""


def compiles(compiler, language, standard, code):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    result = subprocess.run(
        [compiler, f"-x{language}", f"-std={standard}", "-Wall", "-Wextra", "-fsyntax-only",
         f"-I{ROOT}/include", "-"],
        input=code, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_cpp_compiles():
    compiles("c++", "c++", "c++20", in_function(fragment("cpp"), CPP))


def test_c_compiles():
    compiles("cc", "c", "c11", in_function(fragment("c"), C))
