// SPDX-License-Identifier: Apache-2.0
#include "capi/client.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check_fails(const char* file, int line, const char* text, quire_status expected,
                 const char* word, quire_status got) {
  if (got == expected && strstr(quire_error_message(), word) != NULL) return;
  char message[1024];
  (void)snprintf(message, sizeof(message), "%s: %s (%s), expected %s with '%s'", text,
                 quire_status_name(got), got == QUIRE_OK ? "" : quire_error_message(),
                 quire_status_name(expected), word);
  check_failed(file, line, message);
}

quire_attention_spec client_spec(void) {
  quire_attention_spec spec = {QUIRE_SIZED(quire_attention_spec), .num_q_heads = kQHeads,
                               .num_kv_heads = kKvHeads, .head_dim = kDim,
                               .block_size = kBlockSize};
  return spec;
}

quire_tensor dense3(float* data, int64_t rows, int64_t heads, int64_t dim) {
  quire_tensor tensor = {QUIRE_SIZED(quire_tensor), .data = data, .rank = 3,
                         .shape = {rows, heads, dim}};
  return tensor;
}

quire_backend* client_backend(const char* name) {
  quire_backend_options options = {QUIRE_SIZED(quire_backend_options), .num_threads = 2};
  quire_backend* backend = NULL;
  CHECK_OK(quire_backend_create(name, &options, &backend));
  return backend;
}

uint64_t next_random(uint64_t* state) {
  *state += 0x9E3779B97F4A7C15U;
  uint64_t x = *state;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

float number(int what, int layer, int32_t token, int64_t position, int i) {
  uint64_t state = (uint64_t)what * 1000003U + (uint64_t)layer * 10007U +
                   (uint64_t)token * 2654435761U + (uint64_t)position * 40503U + (uint64_t)i;
  return (float)(next_random(&state) >> 40) / (float)(1 << 23) - 1.0F;
}

void fill_rows(float* data, int what, int layer, const int32_t* tokens, const int32_t* positions,
               int64_t rows, int heads) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int i = 0; i < heads * kDim; ++i) {
      *data++ = number(what, layer, tokens[row], positions[row], i);
    }
  }
}

double difference(const float* out, int layer, const int32_t* tokens, int64_t num_tokens) {
  const int64_t last = num_tokens - 1;
  double largest = 0;
  double* weights = malloc((size_t)num_tokens * sizeof(double));
  for (int head = 0; head < kQHeads; ++head) {
    const int kv_head = head / (kQHeads / kKvHeads);
    double sum = 0;
    for (int64_t key = 0; key < num_tokens; ++key) {
      double score = 0;
      for (int i = 0; i < kDim; ++i) {
        score += (double)number(kQ, layer, tokens[last], last, head * kDim + i) *
                 (double)number(kK, layer, tokens[key], key, kv_head * kDim + i);
      }
      weights[key] = exp(score / sqrt((double)kDim));
      sum += weights[key];
    }
    for (int i = 0; i < kDim; ++i) {
      double value = 0;
      for (int64_t key = 0; key < num_tokens; ++key) {
        value +=
            weights[key] / sum * (double)number(kV, layer, tokens[key], key, kv_head * kDim + i);
      }
      const double error = fabs(value - (double)out[head * kDim + i]);
      if (!(error <= largest)) largest = error;  // NaN too
    }
  }
  free(weights);
  return largest;
}
