// SPDX-License-Identifier: Apache-2.0
// `quire info`: the machine, the backends, and what each supports, with every reason.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "cli/command.h"
#include "cli/wrapped_text.h"
#include "quire/registry.h"
#include "quire/version.h"
#include "registry/backend_row.h"
#include "registry/system_probe.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;

Json machine_json(const CpuFeatures& cpu, const SystemProbe& system) {
  Json gpus = Json::array();
  for (const GpuProbe& gpu : system.gpus) {
    gpus.push_back({{"vendor", gpu.vendor},
                    {"name", gpu.name},
                    {"architecture", gpu.architecture},
                    {"memory_bytes", gpu.memory_bytes}});
  }
  return {{"cpu",
           {{"vendor", cpu.vendor},
            {"model", cpu.model},
            {"num_cpus", cpu.num_cpus},
            {"features", feature_names(cpu)}}},
          {"gpus", gpus},
          {"gpu_reasons", system.gpu_reasons}};
}

Json backend_json(const BackendRow& row) {
  Json features = Json::object();
  for (std::size_t i = 0; i < row.features.size(); ++i) {
    features[feature_probes()[i].name] = {{"supported", row.features[i].ok()},
                                          {"reasons", row.features[i].reasons}};
  }
  return {{"name", row.entry->name},
          {"summary", row.entry->summary},
          {"plugin", row.entry->plugin},
          {"available", row.availability.available},
          {"version", row.availability.version},
          {"reasons", row.availability.reasons},
          {"isa", row.info.isa},
          {"isa_levels", row.levels},
          {"batch_invariant", row.info.batch_invariant},
          {"device", device_kind_name(row.info.device.kind)},
          {"features", features}};
}

std::string or_none(const std::vector<std::string>& items) {
  return items.empty() ? "none" : fmt::format("{}", fmt::join(items, " "));
}

void print_machine(const CpuFeatures& cpu, const SystemProbe& system) {
  fmt::print("quire {}\n\n", version());
  fmt::print("CPU        {}, {} CPU{}\n", cpu.model.empty() ? "unknown" : cpu.model, cpu.num_cpus,
             cpu.num_cpus == 1 ? "" : "s");
  fmt::print("           {}\n", or_none(feature_names(cpu)));
  for (const GpuProbe& gpu : system.gpus) {
    fmt::print("GPU        {} {} {}, {:.0f} GiB\n", gpu.vendor, gpu.name, gpu.architecture,
               static_cast<double>(gpu.memory_bytes) / (1LL << 30));
  }
  for (const std::string& reason : system.gpu_reasons) {
    fmt::print("GPU        none: {}\n", reason);
  }
}

void print_backends(const std::vector<BackendRow>& rows) {
  fmt::print("\n{:<11}{:<11}{:<11}{:<17}{}\n", "backend", "available", "version", "batch invariant",
             "levels, best first");
  for (const BackendRow& row : rows) {
    const bool available = row.availability.available;
    fmt::print("{:<11}{:<11}{:<11}{:<17}{}\n", row.entry->name, available ? "yes" : "no",
               available ? row.availability.version : "-",
               !available                 ? "-"
               : row.info.batch_invariant ? "yes"
                                          : "no",
               row.levels.empty() ? "-" : or_none(row.levels));
    fmt::print("    {}\n", row.entry->summary);
    for (const std::string& reason : row.availability.reasons) print_wrapped(reason, 4);
  }
}

std::vector<BackendRow> available(std::vector<BackendRow> rows) {
  std::erase_if(rows, [](const BackendRow& row) { return !row.availability.available; });
  return rows;
}

void print_matrix(const std::vector<BackendRow>& rows) {
  fmt::print("\n{:<24}", "feature");
  for (const BackendRow& row : rows) fmt::print("{:<12}", row.entry->name);
  fmt::print("\n");
  for (std::size_t i = 0; i < feature_probes().size(); ++i) {
    fmt::print("{:<24}", feature_probes()[i].name);
    for (const BackendRow& row : rows) {
      fmt::print("{:<12}", row.features[i].ok() ? "yes" : "no");
    }
    fmt::print("\n");
  }
  for (const BackendRow& row : rows) {
    for (std::size_t i = 0; i < row.features.size(); ++i) {
      for (const std::string& reason : row.features[i].reasons) {
        print_wrapped(
            fmt::format("{} refuses {}: {}", row.entry->name, feature_probes()[i].name, reason), 0);
      }
    }
  }
}

// The matrix of the README.
void print_markdown(const std::vector<BackendRow>& rows) {
  fmt::print("| feature |");
  for (const BackendRow& row : rows) fmt::print(" {} |", row.entry->name);
  fmt::print("\n|---|");
  for (std::size_t i = 0; i < rows.size(); ++i) fmt::print("---|");
  fmt::print("\n");
  for (std::size_t i = 0; i < feature_probes().size(); ++i) {
    fmt::print("| {} |", feature_probes()[i].name);
    for (const BackendRow& row : rows) {
      fmt::print(" {} |", row.features[i].ok() ? "yes" : "no");
    }
    fmt::print("\n");
  }
  fmt::print("| batch invariant |");
  for (const BackendRow& row : rows) fmt::print(" {} |", row.info.batch_invariant ? "yes" : "no");
  fmt::print("\n");
}

struct InfoOptions {
  bool json = false;
  bool markdown = false;
};

int run_info(const InfoOptions& options) {
  std::vector<BackendRow> rows;
  for (const BackendEntry& entry : backend_table()) rows.push_back(describe_backend(entry));
  if (options.markdown) {
    print_markdown(available(rows));
    return kSuccess;
  }
  const CpuFeatures cpu = detect_cpu_features();
  const SystemProbe system = probe_system();
  if (options.json) {
    Json backends = Json::array();
    for (const BackendRow& row : rows) backends.push_back(backend_json(row));
    const Json document = {
        {"version", version()}, {"machine", machine_json(cpu, system)}, {"backends", backends}};
    fmt::print("{}\n", document.dump(2));
    return kSuccess;
  }
  print_machine(cpu, system);
  print_backends(rows);
  print_matrix(available(rows));
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  CLI::App* info =
      app.add_subcommand("info", "Show the machine, its backends and what they support");
  auto options = std::make_shared<InfoOptions>();
  info->add_flag("--json", options->json, "One JSON document on standard output");
  info->add_flag("--markdown", options->markdown, "Only the support matrix, as Markdown");
  info->footer("Examples:\n  quire info\n  quire info --json | jq '.backends[].name'");
  info->callback([&action, options] { action = [options] { return run_info(*options); }; });
}

}  // namespace quire::cli
