// SPDX-License-Identifier: Apache-2.0
// Matrix operations of a warp: fragments are gathered from all lanes into plain matrices by the
// layouts of matrix.h, multiplied by three loops, and scattered again.
#include "gpu/emulator/matrix.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/number_formats.h"
#include "gpu/emulator/launch_state.h"

namespace quire::simt {
namespace {

using internal::Launch;
using internal::running_launch;

struct MultiplyOperands {
  float* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

// One of the two numbers of a register.
template <class T>
float half_of(std::uint32_t register_bits, int half) {
  return to_float(T{static_cast<std::uint16_t>(register_bits >> (16 * half))});
}

// Where the elements of a fragment lie. Each function gives the position of number `i` of a lane's
// registers; 16-bit operands count two to a register.
struct Position {
  int row;
  int column;
};

// NVIDIA m16n8k16.
struct Mma {
  static constexpr int kLanes = 32;
  static constexpr int kM = 16;
  static constexpr int kN = 8;
  static constexpr int kK = 16;
  static constexpr int kElementsA = 8;
  static constexpr int kElementsB = 4;
  static Position a(int lane, int i) {
    const int reg = i / 2;
    return {lane / 4 + 8 * (reg % 2), 2 * (lane % 4) + i % 2 + 8 * (reg / 2)};
  }
  static Position b(int lane, int i) { return {2 * (lane % 4) + i % 2 + 8 * (i / 2), lane / 4}; }
  static Position d(int lane, int i) { return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2}; }
};

// AMD 16x16x16.
struct Mfma {
  static constexpr int kLanes = 64;
  static constexpr int kM = 16;
  static constexpr int kN = 16;
  static constexpr int kK = 16;
  static constexpr int kElementsA = 4;
  static constexpr int kElementsB = 4;
  static Position a(int lane, int i) { return {lane % 16, 4 * (lane / 16) + i}; }
  static Position b(int lane, int i) { return {4 * (lane / 16) + i, lane % 16}; }
  static Position d(int lane, int i) { return {4 * (lane / 16) + i, lane % 16}; }
};

constexpr int kAccumulators = 4;  // of a lane, in either shape

// The operands of the lanes that take part, from the first of them on.
void* const* team_of(const Lanes& lanes) {
  return lanes.operands + std::countr_zero(lanes.mask);
}

template <class Shape, class T>
void run_multiply(const Lanes& lanes) {
  void* const* const team = team_of(lanes);
  double a[Shape::kM][Shape::kK];
  double b[Shape::kK][Shape::kN];
  for (int lane = 0; lane < Shape::kLanes; ++lane) {
    const auto& own = *static_cast<const MultiplyOperands*>(team[lane]);
    for (int i = 0; i < Shape::kElementsA; ++i) {
      const Position at = Shape::a(lane, i);
      a[at.row][at.column] = static_cast<double>(half_of<T>(own.a[i / 2], i % 2));
    }
    for (int i = 0; i < Shape::kElementsB; ++i) {
      const Position at = Shape::b(lane, i);
      b[at.row][at.column] = static_cast<double>(half_of<T>(own.b[i / 2], i % 2));
    }
  }
  double sums[Shape::kM][Shape::kN] = {};
  for (int i = 0; i < Shape::kM; ++i) {
    for (int k = 0; k < Shape::kK; ++k) {
      for (int j = 0; j < Shape::kN; ++j) sums[i][j] += a[i][k] * b[k][j];
    }
  }
  for (int lane = 0; lane < Shape::kLanes; ++lane) {
    float* const d = static_cast<const MultiplyOperands*>(team[lane])->d;
    for (int i = 0; i < kAccumulators; ++i) {
      const Position at = Shape::d(lane, i);
      d[i] = static_cast<float>(static_cast<double>(d[i]) + sums[at.row][at.column]);
    }
  }
}

// Waits for the lanes that multiply or load with the caller: `num_lanes` of them, which must exist.
void run_in_team(CollectiveFunction run, const char* name, void* operands, int num_lanes, Site site,
                 const void* pc) {
  Launch::enter([&](Launch& launch) {
    const LaneMask existing = launch.lanes_of_warp(launch.warp_of(launch.current()));
    const int first = launch.current() % launch.shape().warp_width / num_lanes * num_lanes;
    const LaneMask mask = (num_lanes == 64 ? kFullMask : (LaneMask{1} << num_lanes) - 1) << first;
    if ((existing & mask) != mask) {
      launch.raise(
          FaultKind::kCheckFailed,
          concat(name, " needs ", num_lanes, " lanes, here are ", std::popcount(existing & mask)),
          site, pc);
    }
    launch.collective(
        {.run = run, .name = name, .operands = operands, .mask = mask, .site = site, .pc = pc});
  });
}

template <class Shape, class T>
void multiply(const char* name, MultiplyOperands operands, Site site, const void* pc) {
  run_in_team(run_multiply<Shape, T>, name, &operands, Shape::kLanes, site, pc);
}

constexpr int kTeamLanes = 32;
constexpr int kRowsOfMatrix = 8;
constexpr std::size_t kRowBytes = 16;

struct LoadOperands {
  std::uint32_t* registers;
  const unsigned char* row;
};

// A load of matrices by a team; lanes count from its first.
class MatrixLoad {
 public:
  explicit MatrixLoad(const Lanes& lanes)
      : team_(team_of(lanes)), lanes_(lanes.mask), first_(std::countr_zero(lanes.mask)) {}

  LoadOperands& operands(int lane) const { return *static_cast<LoadOperands*>(team_[lane]); }

  // The row that a lane points to: 16 bytes of shared memory on a multiple of 16. Its numbers go to
  // other lanes, so the load must be ordered after the stores for all of them.
  void check_row(int lane) const {
    const auto address = reinterpret_cast<std::uintptr_t>(operands(lane).row);
    Launch& launch = *running_launch;
    const int thread = launch.thread_of_lane(first_ + lane);
    const internal::MemoryAccess access{.thread = thread,
                                        .address = address,
                                        .bytes = kRowBytes,
                                        .pc = launch.thread(thread).pc,
                                        .site = launch.thread(thread).site};
    if (!launch.checker().is_shared(address)) {
      launch.checker().raise(FaultKind::kOutOfBounds, access,
                             "a row of a matrix that is not in shared memory");
    }
    launch.checker().check_warp_read(access, lanes_);
    if (address % kRowBytes != 0) {
      launch.checker().raise(FaultKind::kMisaligned, access, "a row of a matrix");
    }
  }

  std::uint32_t element(int matrix, int row, int column) const {
    std::uint16_t bits = 0;
    const std::size_t offset = sizeof(bits) * static_cast<std::size_t>(column);
    std::memcpy(&bits, operands(kRowsOfMatrix * matrix + row).row + offset, sizeof(bits));
    return bits;
  }

 private:
  void* const* team_;
  LaneMask lanes_;
  int first_;
};

template <int kMatrices, bool kTransposed>
void run_load(const Lanes& lanes) {
  const MatrixLoad load(lanes);
  for (int lane = 0; lane < kRowsOfMatrix * kMatrices; ++lane) load.check_row(lane);
  for (int lane = 0; lane < kTeamLanes; ++lane) {
    const int first = lane / 4;
    const int second = 2 * (lane % 4);
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      const std::uint32_t low =
          kTransposed ? load.element(matrix, second, first) : load.element(matrix, first, second);
      const std::uint32_t high = kTransposed ? load.element(matrix, second + 1, first)
                                             : load.element(matrix, first, second + 1);
      load.operands(lane).registers[matrix] = low | high << 16;
    }
  }
}

template <int kMatrices, bool kTransposed>
void load_matrices(const char* name, std::uint32_t* registers, const void* row, Site site,
                   const void* pc) {
  LoadOperands operands{registers, static_cast<const unsigned char*>(row)};
  run_in_team(run_load<kMatrices, kTransposed>, name, &operands, kTeamLanes, site, pc);
}

// Every lane's operand is the register that it gives and gets.
void run_transpose(const Lanes& lanes) {
  void* const* const team = team_of(lanes);
  std::uint32_t elements[kRowsOfMatrix][kRowsOfMatrix];
  for (int lane = 0; lane < kTeamLanes; ++lane) {
    const std::uint32_t two = *static_cast<const std::uint32_t*>(team[lane]);
    elements[lane / 4][2 * (lane % 4)] = two & 0xffff;
    elements[lane / 4][2 * (lane % 4) + 1] = two >> 16;
  }
  for (int lane = 0; lane < kTeamLanes; ++lane) {
    *static_cast<std::uint32_t*>(team[lane]) =
        elements[2 * (lane % 4)][lane / 4] | elements[2 * (lane % 4) + 1][lane / 4] << 16;
  }
}

}  // namespace

std::uint32_t transpose_matrix(std::uint32_t two, Site site) noexcept {
  run_in_team(run_transpose, "transpose_matrix", &two, kTeamLanes, site,
              __builtin_return_address(0));
  return two;
}

void mma_m16n8k16_bf16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1,
                       Site site) noexcept {
  const std::array<std::uint32_t, 2> b{b0, b1};
  multiply<Mma, BFloat16>("mma_m16n8k16_bf16", {d, a, b.data()}, site, __builtin_return_address(0));
}

void mma_m16n8k16_f16(float* d, const std::uint32_t* a, std::uint32_t b0, std::uint32_t b1,
                      Site site) noexcept {
  const std::array<std::uint32_t, 2> b{b0, b1};
  multiply<Mma, Float16>("mma_m16n8k16_f16", {d, a, b.data()}, site, __builtin_return_address(0));
}

void mfma_16x16x16_bf16(float* d, const std::uint32_t* a, const std::uint32_t* b,
                        Site site) noexcept {
  multiply<Mfma, BFloat16>("mfma_16x16x16_bf16", {d, a, b}, site, __builtin_return_address(0));
}

void mfma_16x16x16_f16(float* d, const std::uint32_t* a, const std::uint32_t* b,
                       Site site) noexcept {
  multiply<Mfma, Float16>("mfma_16x16x16_f16", {d, a, b}, site, __builtin_return_address(0));
}

void load_matrix_x4(std::uint32_t* registers, const void* row, Site site) noexcept {
  load_matrices<4, false>("load_matrix_x4", registers, row, site, __builtin_return_address(0));
}

void load_matrix_x4_transposed(std::uint32_t* registers, const void* row, Site site) noexcept {
  load_matrices<4, true>("load_matrix_x4_transposed", registers, row, site,
                         __builtin_return_address(0));
}

void load_matrix_x2(std::uint32_t* registers, const void* row, Site site) noexcept {
  load_matrices<2, false>("load_matrix_x2", registers, row, site, __builtin_return_address(0));
}

void load_matrix_x2_transposed(std::uint32_t* registers, const void* row, Site site) noexcept {
  load_matrices<2, true>("load_matrix_x2_transposed", registers, row, site,
                         __builtin_return_address(0));
}

}  // namespace quire::simt
