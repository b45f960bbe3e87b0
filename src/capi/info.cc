// SPDX-License-Identifier: Apache-2.0
// The backends of this machine as values and as JSON: what `quire info --json` prints.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "capi/handles.h"
#include "capi/json_text.h"
#include "capi/sized_struct.h"
#include "quire/registry.h"
#include "quire/version.h"
#include "registry/backend_row.h"
#include "registry/system_probe.h"

namespace quire::capi {
namespace {

void write_machine(JsonText& json) {
  const CpuFeatures cpu = detect_cpu_features();
  const SystemProbe system = probe_system();
  json.begin_object();
  json.key("cpu");
  json.begin_object();
  json.key("vendor");
  json.string(cpu.vendor);
  json.key("model");
  json.string(cpu.model);
  json.key("num_cpus");
  json.number(cpu.num_cpus);
  json.key("features");
  json.strings(feature_names(cpu));
  json.end_object();
  json.key("gpus");
  json.begin_array();
  for (const GpuProbe& gpu : system.gpus) {
    json.begin_object();
    json.key("vendor");
    json.string(gpu.vendor);
    json.key("name");
    json.string(gpu.name);
    json.key("architecture");
    json.string(gpu.architecture);
    json.key("memory_bytes");
    json.number(gpu.memory_bytes);
    json.end_object();
  }
  json.end_array();
  json.key("gpu_reasons");
  json.strings(system.gpu_reasons);
  json.end_object();
}

void write_features(const BackendRow& row, JsonText& json) {
  json.begin_object();
  for (std::size_t i = 0; i < row.features.size(); ++i) {
    json.key(feature_probes()[i].name);
    json.begin_object();
    json.key("supported");
    json.boolean(row.features[i].ok());
    json.key("reasons");
    json.strings(row.features[i].reasons);
    json.end_object();
  }
  json.end_object();
}

void write_backend(const BackendRow& row, JsonText& json) {
  const auto text = [&](const char* name, std::string_view value) {
    json.key(name);
    json.string(value);
  };
  json.begin_object();
  text("name", row.entry->name);
  text("summary", row.entry->summary);
  json.key("plugin");
  json.boolean(row.entry->plugin);
  json.key("available");
  json.boolean(row.availability.available);
  text("version", row.availability.version);
  json.key("reasons");
  json.strings(row.availability.reasons);
  text("isa", row.info.isa);
  json.key("isa_levels");
  json.strings(row.levels);
  json.key("batch_invariant");
  json.boolean(row.info.batch_invariant);
  text("device", device_kind_name(row.info.device.kind));
  json.key("features");
  write_features(row, json);
  json.end_object();
}

std::string to_json(const std::vector<BackendRow>& rows) {
  JsonText json;
  json.begin_object();
  json.key("version");
  json.string(version());
  json.key("machine");
  write_machine(json);
  json.key("backends");
  json.begin_array();
  for (const BackendRow& row : rows) write_backend(row, json);
  json.end_array();
  json.end_object();
  return json.text();
}

// What is known of a backend beside whether it can be used.
quire_backend_info describe(const BackendInfo& info) {
  auto value = make_struct<quire_backend_info>();
  value.name = info.name.c_str();
  value.summary = "";
  value.version = info.version.c_str();
  value.isa = info.isa.c_str();
  value.batch_invariant = info.batch_invariant ? 1 : 0;
  value.device_kind = static_cast<std::int32_t>(info.device.kind);
  value.device_index = info.device.index;
  return value;
}

void set_entry(const BackendEntry& entry, quire_backend_info& value) {
  value.name = entry.name;
  value.summary = entry.summary;
  value.automatic = entry.automatic ? 1 : 0;
  value.plugin = entry.plugin ? 1 : 0;
}

}  // namespace
}  // namespace quire::capi

struct quire_info {
  static constexpr auto kKind = quire::capi::HandleKind::kInfo;
  quire::capi::HandleKind kind = kKind;
  std::vector<quire::BackendRow> rows;
  std::string json;
};

using namespace quire::capi;
using quire::BackendRow;

namespace {

const BackendRow& row_of(const quire_info* info, std::int64_t index) {
  const std::vector<BackendRow>& rows = open(info, "info").rows;
  return rows[to_index(index, rows.size(), "backend")];
}

}  // namespace

quire_status quire_info_create(quire_info** info) {
  return guarded([&] {
    quire_info*& out = require_out(info, "info");
    auto handle = std::make_unique<quire_info>();
    for (const quire::BackendEntry& entry : quire::backend_table()) {
      handle->rows.push_back(describe_backend(entry));
    }
    handle->json = to_json(handle->rows);
    out = handle.release();
  });
}

quire_status quire_info_destroy(quire_info* info) {
  return destroy(info, "info");
}

quire_status quire_info_num_backends(const quire_info* info, int64_t* num_backends) {
  return guarded([&] {
    int64_t& out = require_out(num_backends, "num_backends");
    out = static_cast<int64_t>(open(info, "info").rows.size());
  });
}

quire_status quire_info_backend(const quire_info* info, int64_t index,
                                quire_backend_info* backend) {
  return guarded([&] {
    OutStruct<quire_backend_info> out(backend, "backend");
    const BackendRow& row = row_of(info, index);
    quire_backend_info value = describe(row.info);
    set_entry(*row.entry, value);
    value.version = row.availability.version.c_str();
    value.available = row.availability.available ? 1 : 0;
    value.num_reasons = static_cast<int64_t>(row.availability.reasons.size());
    value.num_isa_levels = static_cast<int64_t>(row.levels.size());
    out.set(value);
  });
}

quire_status quire_info_reason(const quire_info* info, int64_t index, int64_t reason,
                               const char** text) {
  return guarded([&] {
    const char*& out = require_out(text, "text");
    const std::vector<std::string>& reasons = row_of(info, index).availability.reasons;
    out = reasons[to_index(reason, reasons.size(), "reason")].c_str();
  });
}

quire_status quire_info_isa_level(const quire_info* info, int64_t index, int64_t level,
                                  const char** text) {
  return guarded([&] {
    const char*& out = require_out(text, "text");
    const std::vector<std::string>& levels = row_of(info, index).levels;
    out = levels[to_index(level, levels.size(), "level")].c_str();
  });
}

quire_status quire_info_json(const quire_info* info, const char** text) {
  return guarded([&] {
    const char*& out = require_out(text, "text");
    out = open(info, "info").json.c_str();
  });
}

quire_status quire_backend_describe(const quire_backend* backend, quire_backend_info* info) {
  return guarded([&] {
    OutStruct<quire_backend_info> out(info, "info");
    const quire::BackendInfo& known = open(backend, "backend").info;
    quire_backend_info value = describe(known);
    value.available = 1;
    for (const quire::BackendEntry& entry : quire::backend_table()) {
      if (known.name == entry.name) set_entry(entry, value);
    }
    out.set(value);
  });
}
