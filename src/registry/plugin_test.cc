// SPDX-License-Identifier: Apache-2.0
// Plug-ins are found, loaded and used, and every way in which one can be unusable is a reason. The
// plug-ins of these tests are those of tests/plugin, in the folder QUIRE_TEST_PLUGINS.
#include "registry/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "conformance/case_list.h"
#include "conformance/run.h"

namespace quire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// Sets QUIRE_PLUGIN_PATH, and puts back what was.
class PluginPath {
 public:
  explicit PluginPath(const char* path) {
    if (const char* old = std::getenv(kVariable)) old_ = old;
    set(path);
  }
  ~PluginPath() { set(old_ ? old_->c_str() : nullptr); }
  PluginPath(const PluginPath&) = delete;
  PluginPath& operator=(const PluginPath&) = delete;

 private:
  static constexpr const char* kVariable = "QUIRE_PLUGIN_PATH";
  static void set(const char* path) {
    if (path == nullptr) {
      unsetenv(kVariable);
    } else {
      setenv(kVariable, path, 1);
    }
  }
  std::optional<std::string> old_;
};

class PluginTest : public ::testing::Test {
 protected:
  // A reason if probing gives exactly one, else empty.
  static std::string reason_of(std::string_view name) {
    const Availability availability = probe_plugin(name);
    EXPECT_FALSE(availability.available);
    EXPECT_EQ(availability.reasons.size(), 1U);
    return availability.reasons.empty() ? "" : availability.reasons[0];
  }

  PluginPath path_{QUIRE_TEST_PLUGINS};
};

TEST_F(PluginTest, RowOfAGoodOne) {
  constexpr BackendEntry kRow = plugin_row<"good">("a summary", true);
  EXPECT_STREQ(kRow.name, "good");
  EXPECT_STREQ(kRow.summary, "a summary");
  EXPECT_TRUE(kRow.automatic && kRow.plugin);
  const Availability availability = kRow.probe();
  EXPECT_TRUE(availability.available);
  EXPECT_EQ(availability.version, "47.11");
  EXPECT_THAT(availability.reasons, ElementsAre());
  EXPECT_THAT(kRow.isa_levels(), ElementsAre("only"));
}

TEST_F(PluginTest, ThoseOfTheHostHaveNoMeter) {
  EXPECT_EQ(make_plugin_meter("good"), nullptr);
  EXPECT_EQ(make_plugin_meter("not_there"), nullptr);
  EXPECT_EQ(make_plugin_meter("other_abi"), nullptr);
}

// Calls, memory and results cross the border, in both directions.
TEST_F(PluginTest, BackendPassesCases) {
  const std::unique_ptr<AttentionBackend> backend = make_plugin("good", {});
  int num_passed = 0;
  for (const conformance::Case& c : conformance::select(
           conformance::all_cases(), conformance::Suite::kSmoke, "mixed/*,cache/*")) {
    const conformance::CaseResult result = conformance::run_case(*backend, c);
    EXPECT_NE(result.status, conformance::CaseStatus::kFailed) << c.name << ": " << result.reason;
    if (result.status == conformance::CaseStatus::kPassed) ++num_passed;
  }
  EXPECT_GE(num_passed, 5);
}

TEST_F(PluginTest, ErrorsCrossTheBorder) {
  try {
    static_cast<void>(make_plugin("good", {.num_threads = 13, .isa = {}}));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_STREQ(error.what(), "13 threads are too many");
  }
}

TEST_F(PluginTest, FaultsAreReasons) {
  EXPECT_THAT(reason_of("other_abi"),
              AllOf(HasSubstr("built for 'quire 0.0.1', this is 'quire "), HasSubstr(" sizes ")));
  EXPECT_THAT(reason_of("other_size"), HasSubstr("has an entry of 24 bytes, not "));
  EXPECT_THAT(reason_of("no_function"), EndsWith("exports no quire_plugin"));
  EXPECT_EQ(reason_of("throwing"), "the vendor's library does not start");
  EXPECT_THAT(reason_of("lacks_library"), EndsWith("libquire_test_absent.so.7 not found"));
  EXPECT_THAT(reason_of("no_entry"), EndsWith("has no entry"));
  EXPECT_THAT(reason_of("lacks_function"), EndsWith("lacks a function"));
}

TEST_F(PluginTest, UnusableOnesCannotBeMade) {
  for (const char* name : {"other_abi", "lacks_library", "absent"}) {
    EXPECT_THAT(plugin_isa_levels(name), ElementsAre());
    try {
      static_cast<void>(make_plugin(name, {}));
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr(std::string("backend ") + name + " cannot be used here"));
    }
  }
}

TEST_F(PluginTest, AbsentOneNamesTheFolders) {
  const PluginPath path("/nowhere/a:/nowhere/b");
  EXPECT_EQ(reason_of("good"), "not built: there is no libquire_good.so in /nowhere/a, /nowhere/b");
  const PluginPath none("");
  EXPECT_EQ(reason_of("good"), "not built: no folder to look for libquire_good.so in");
}

TEST_F(PluginTest, WhatIsNoLibraryIsAReason) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("plugins" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "libquire_text.so") << "not a library\n";
  std::ofstream(folder / "libquire_empty.so");
  const PluginPath path(folder.c_str());
  EXPECT_THAT(reason_of("text"), HasSubstr("libquire_text.so: "));
  EXPECT_THAT(reason_of("empty"), HasSubstr("libquire_empty.so: "));
  std::filesystem::remove_all(folder);
}

// The first folder that has the file decides, whatever it is worth.
TEST_F(PluginTest, FoldersInOrder) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("first" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const PluginPath path((folder.string() + "::" + QUIRE_TEST_PLUGINS).c_str());
  EXPECT_TRUE(probe_plugin("good").available);
  std::ofstream(folder / "libquire_good.so") << "not a library\n";
  EXPECT_FALSE(probe_plugin("good").available);
  std::filesystem::remove_all(folder);
}

TEST_F(PluginTest, UsualFoldersAreRelativeToTheProgram) {
  const PluginPath path(nullptr);
  const std::filesystem::path program = std::filesystem::canonical("/proc/self/exe").parent_path();
  const std::vector<std::string> folders = plugin_folders();
  ASSERT_GE(folders.size(), 4U);
  EXPECT_EQ(folders[0], program);
  EXPECT_THAT(folders, ::testing::Contains(program.parent_path() / "lib/quire"));
  EXPECT_THAT(reason_of("absent"), HasSubstr(program.string()));
}

TEST(PluginTable, RowsOfPluginsComeWithoutThem) {
  const PluginPath none("");
  int num_rows = 0;
  for (const BackendEntry& entry : backend_table()) {
    EXPECT_EQ(entry.probe().available, !entry.plugin) << entry.name;
    if (entry.plugin) ++num_rows;
  }
  EXPECT_GE(num_rows, 3);
  EXPECT_THROW(static_cast<void>(make_backend("openvino")), Error);
  AttentionSpec spec;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.head_dim = spec.value_dim = 16;
  EXPECT_EQ(choose_backend(spec)->info().name, "cpu");
}

}  // namespace
}  // namespace quire
