// SPDX-License-Identifier: Apache-2.0
#include "benchmark/report_json.h"

#include <fstream>

#include "base/check.h"
#include "quire/version.h"

namespace quire::benchmark {
namespace {

using Json = nlohmann::ordered_json;

Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu.model},
          {"vendor", machine.cpu.vendor},
          {"num_cpus", machine.cpu.num_cpus},
          {"features", feature_names(machine.cpu)},
          {"last_level_cache_bytes", machine.last_level_cache_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"load_average", machine.load_average},
          {"kernel", machine.kernel},
          {"compiler", machine.compiler},
          {"date", machine.date},
          {"quire", version()}};
}

Json ceiling_json(const CeilingValues& values) {
  Json flops = Json::object();
  for (const auto& [name, rate] : values.flops_per_second) flops[name] = rate;
  Json pieces = Json::object();
  for (const auto& [size, rate] : values.piece_read_bytes_per_second) {
    pieces[std::to_string(size)] = rate;
  }
  Json cached = Json::object();
  for (const auto& [size, rate] : values.cached_read_bytes_per_second) {
    cached[std::to_string(size)] = rate;
  }
  return {{"device", values.device},
          {"threads", values.threads},
          {"read_bytes_per_second", values.read_bytes_per_second},
          {"copy_bytes_per_second", values.copy_bytes_per_second},
          {"flops_per_second", flops},
          {"piece_read_bytes_per_second", pieces},
          {"to_host_bytes_per_second", values.to_host_bytes_per_second},
          {"to_device_bytes_per_second", values.to_device_bytes_per_second},
          {"cached_read_bytes_per_second", cached}};
}

Json device_json(const DeviceFacts& facts) {
  return {{"name", facts.name},
          {"architecture", facts.architecture},
          {"version", facts.version},
          {"num_processors", facts.num_processors},
          {"cache_bytes", facts.cache_bytes},
          {"memory_bytes", facts.memory_bytes}};
}

// The ceilings of the first device, or on most threads, and under "by_threads" all of them.
Json ceilings_json(const std::vector<CeilingValues>& ceilings) {
  Json document = ceilings.empty() ? ceiling_json({}) : ceiling_json(ceilings.front());
  document["by_threads"] = Json::array();
  for (const CeilingValues& values : ceilings)
    document["by_threads"].push_back(ceiling_json(values));
  return document;
}

Json result_json(const Result& result) {
  Json document = {{"suite", result.suite},
                   {"case", result.name},
                   {"backend", result.backend},
                   {"isa", result.isa},
                   {"threads", result.threads},
                   {"block_size", result.block_size},
                   {"kv_dtype", result.kv_dtype},
                   {"timing", result.timing},
                   {"seconds", result.seconds},
                   {"setup_seconds", result.setup_seconds},
                   {"first_seconds", result.first_seconds},
                   {"bytes_per_second", result.bytes_per_second},
                   {"flops_per_second", result.flops_per_second},
                   {"share_of_ceiling", result.share_of_ceiling},
                   {"ceiling", result.ceiling},
                   {"layout", result.layout},
                   {"hot", result.hot},
                   {"median_seconds", result.median_seconds},
                   {"layer_seconds", result.layer_seconds},
                   {"layers_per_plan", result.layers_per_plan},
                   {"host_seconds", result.host_seconds},
                   {"gather_seconds", result.gather_seconds},
                   {"gather_in_seconds", result.gather_in_seconds},
                   {"rounds", result.rounds},
                   {"spread", result.spread},
                   {"bytes", result.bytes},
                   {"flops", result.flops},
                   {"ratio_to_first", result.ratio_to_first},
                   {"baseline", result.baseline},
                   {"ratio_to_baseline", result.ratio_to_baseline},
                   {"reason", result.reason},
                   {"notes", result.notes}};
  return document;
}

template <class T>
void read_key(const Json& object, const char* key, T& value) {
  const auto found = object.find(key);
  require(found != object.end(), "a benchmark result has no key '", key, "'");
  try {
    found->get_to(value);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kInvalidArgument, "the key '", key, "' of a benchmark result: ", error.what());
  }
}

}  // namespace

Json to_json(const Report& report) {
  Json results = Json::array();
  for (const Result& result : report.results) results.push_back(result_json(result));
  Json devices = Json::array();
  for (const DeviceFacts& facts : report.devices) devices.push_back(device_json(facts));
  return {{"machine", machine_json(report.machine)},
          {"devices", devices},
          {"ceilings", ceilings_json(report.ceilings)},
          {"results", results},
          {"notes", report.notes}};
}

std::vector<Result> results_from_json(const Json& document) {
  require(document.is_object() && document.contains("results") && document["results"].is_array(),
          "the document has no list 'results'");
  std::vector<Result> results;
  for (const Json& object : document["results"]) {
    require(object.is_object(), "an entry of 'results' is no object");
    Result result;
    read_key(object, "suite", result.suite);
    read_key(object, "case", result.name);
    read_key(object, "backend", result.backend);
    read_key(object, "isa", result.isa);
    read_key(object, "threads", result.threads);
    read_key(object, "block_size", result.block_size);
    read_key(object, "kv_dtype", result.kv_dtype);
    read_key(object, "seconds", result.seconds);
    read_key(object, "share_of_ceiling", result.share_of_ceiling);
    if (object.contains("reason")) read_key(object, "reason", result.reason);
    if (object.contains("spread")) read_key(object, "spread", result.spread);
    results.push_back(result);
  }
  return results;
}

std::vector<Result> read_results(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(ErrorCode::kIo, "cannot read the file ", path);
  const Json document = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  require(!document.is_discarded(), "the file ", path, " is not JSON");
  return results_from_json(document);
}

}  // namespace quire::benchmark
