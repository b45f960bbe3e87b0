// SPDX-License-Identifier: Apache-2.0
// Holds the vectors of one level to what they promise, lane by lane. Included into a target region
// and a namespace of its own after the level's vec.inl; findings go through expect(), which is
// compiled for the baseline.

inline void check_arithmetic() noexcept {
  alignas(64) float a[kLanes];
  alignas(64) float b[kLanes];
  alignas(64) float c[kLanes];
  alignas(64) float out[kLanes];
  for (int round = 0; round < 2000; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      a[i] = draw();
      b[i] = draw();
      c[i] = draw();
    }
    const Vec x = load(a);
    const Vec y = load(b);
    const Vec z = load(c);
    const auto lanes = [&](const char* what, Vec got, auto want) noexcept {
      store(out, got);
      for (int i = 0; i < kLanes; ++i) expect(same(out[i], want(i)), what, round);
    };
    lanes("add", add(x, y), [&](int i) { return a[i] + b[i]; });
    lanes("sub", sub(x, y), [&](int i) { return a[i] - b[i]; });
    lanes("mul", mul(x, y), [&](int i) { return a[i] * b[i]; });
    lanes("div", div(x, y), [&](int i) { return a[i] / b[i]; });
    lanes("abs", abs(x), [&](int i) { return std::fabs(a[i]); });
    lanes("exact_fms", exact_fms(x, y, z), [&](int i) { return std::fma(a[i], b[i], -c[i]); });
    lanes("max_of", max_of(x, y), [&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
    lanes("select_less", select_less(x, y, z, x), [&](int i) { return a[i] < b[i] ? c[i] : a[i]; });
    lanes("zero_where_zero", zero_where_zero(x, y), [&](int i) { return a[i] == 0 ? 0.0F : b[i]; });
    lanes("set1", set1(a[0]), [&](int) { return a[0]; });
    lanes("iota", iota(), [&](int i) { return static_cast<float>(i); });
    store(out, fma(x, y, z));  // rounded once or twice
    for (int i = 0; i < kLanes; ++i) {
      const float product = a[i] * b[i];
      expect(same(out[i], std::fma(a[i], b[i], c[i])) || same(out[i], product + c[i]), "fma",
             round);
    }
    const int begin = round % (kLanes + 6) - 3;
    const int end = round / 7 % (kLanes + 6) - 3;
    lanes("keep_lanes", keep_lanes(x, begin, end, y),
          [&](int i) { return i >= begin && i < end ? a[i] : b[i]; });
    bool greater = false;
    bool nan = false;
    for (int i = 0; i < kLanes; ++i) {
      greater = greater || a[i] > b[i];
      nan = nan || a[i] != a[i];
    }
    expect(any_greater(x, y) == greater, "any_greater", round);
    expect(any_nan(x) == nan, "any_nan", round);
  }
}

inline void check_sums() noexcept {
  Vec rows[kLanes];
  float values[kLanes][kLanes];
  alignas(64) float out[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) values[i][j] = static_cast<float>(i * 100 + (j * 7) % 31);
    rows[i] = load(values[i]);
  }
  store(out, add_lanes(rows));
  for (int i = 0; i < kLanes; ++i) {
    float sum = 0;
    float most = values[i][0];
    for (int j = 0; j < kLanes; ++j) {
      sum += values[i][j];
      most = most > values[i][j] ? most : values[i][j];
    }
    expect(out[i] == sum, "add_lanes", i);
    expect(reduce_add(rows[i]) == sum, "reduce_add", i);
    expect(reduce_max(rows[i]) == most, "reduce_max", i);
  }
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) {
    store(out, rows[i]);
    for (int j = 0; j < kLanes; ++j) expect(out[j] == values[j][i], "transpose", i);
  }
}

template <int kDegree>
inline void check_exp2(double bound) noexcept {
  alignas(64) float in[kLanes];
  alignas(64) float out[kLanes];
  for (int step = 0; step < 40000; ++step) {
    for (int i = 0; i < kLanes; ++i) {
      in[i] = -126.0F + 140.0F * static_cast<float>(step * kLanes + i) / (40000.0F * kLanes);
    }
    store(out, exp2<kDegree>(load(in)));
    for (int i = 0; i < kLanes; ++i) {
      const double want = std::exp2(static_cast<double>(in[i]));
      expect(std::fabs(out[i] - want) <= bound * want, "exp2", step);
    }
  }
  store(out, exp2<kDegree>(set1(-std::numeric_limits<float>::infinity())));
  expect(out[0] == 0.0F, "exp2 of -inf", kDegree);
  store(out, exp2<kDegree>(set1(-1000.0F)));
  expect(out[kLanes - 1] == 0.0F, "exp2 of -1000", kDegree);
  store(out, exp2<kDegree>(set1(std::numeric_limits<float>::quiet_NaN())));
  expect(out[0] != out[0], "exp2 of NaN", kDegree);
}

// Every code of a format, as a row and as pairs.
template <class T>
inline void check_loads(int num_codes) noexcept {
  T codes[2 * kLanes];
  alignas(64) float even[kLanes];
  alignas(64) float odd[kLanes];
  for (int first = 0; first < num_codes; first += 2 * kLanes) {
    for (int i = 0; i < 2 * kLanes; ++i) codes[i] = code_of<T>(first + i);
    store(even, load_row(codes));
    for (int i = 0; i < kLanes; ++i) {
      expect(same(even[i], decoded(codes[i])), "load_row", first + i);
    }
    const Pair pair = load_pair(codes);
    store(even, pair.even);
    store(odd, pair.odd);
    for (int i = 0; i < kLanes; ++i) {
      expect(same(even[i], decoded(codes[2 * i])), "load_pair even", first + 2 * i);
      expect(same(odd[i], decoded(codes[2 * i + 1])), "load_pair odd", first + 2 * i + 1);
    }
  }
}

// Floats around every 16-bit code: the codes, halves between them and their neighbours.
template <class T>
inline void check_stores() noexcept {
  alignas(64) float in[kLanes];
  T out[kLanes];
  for (std::uint32_t high = 0; high < 0x10000; high += kLanes) {
    for (const std::uint32_t low :
         {0x0000U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      for (int i = 0; i < kLanes; ++i) {
        in[i] = __builtin_bit_cast(float, (high + static_cast<std::uint32_t>(i)) << 16 | low);
      }
      store_row(out, load(in));
      for (int i = 0; i < kLanes; ++i) {
        expect(equal_codes(out[i], in[i]), "store_row", static_cast<int>(high) + i);
      }
    }
  }
}

inline void check_all() noexcept {
  check_arithmetic();
  check_sums();
  check_exp2<3>(2e-4);
  check_exp2<5>(4e-7);
  check_loads<float>(4096);
  check_loads<BFloat16>(65536);
  check_loads<Float16>(65536);
  check_loads<Float8E4M3>(256);
  check_loads<Float8E5M2>(256);
  check_loads<std::int8_t>(256);
  check_stores<BFloat16>();
  check_stores<Float16>();
}
