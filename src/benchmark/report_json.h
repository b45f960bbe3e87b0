// SPDX-License-Identifier: Apache-2.0
// A report as the JSON document of `quire bench --json`, and back. Scripts rely on its keys.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "benchmark/result.h"

namespace quire::benchmark {

nlohmann::ordered_json to_json(const Report& report);

// Throws Error(kInvalidArgument) naming the key that is missing or of another type, and Error(kIo)
// for a file that cannot be read.
std::vector<Result> results_from_json(const nlohmann::ordered_json& document);
std::vector<Result> read_results(const std::string& path);

}  // namespace quire::benchmark
