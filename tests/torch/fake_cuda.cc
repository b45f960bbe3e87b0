// SPDX-License-Identifier: Apache-2.0
// A driver and a runtime of CUDA that do nothing but remember on which device a call was made, as
// shared objects for tests without a device. What differs between them is defined by the build:
// FAKE_INIT_RESULT of cuInit, FAKE_NUM_DEVICES, FAKE_CAPABILITY, and FAKE_LACKS_QUERY and
// FAKE_LACKS_COUNT for symbols that are missing.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#ifndef FAKE_INIT_RESULT
#define FAKE_INIT_RESULT 0
#endif
#ifndef FAKE_NUM_DEVICES
#define FAKE_NUM_DEVICES 2
#endif
#ifndef FAKE_CAPABILITY
#define FAKE_CAPABILITY 90
#endif

namespace {

thread_local int current_device = 0;
std::atomic<int> device_of_call = -1;
std::atomic<int> query_result = 0;
std::atomic<int> capture_status = 0;

int called() {
  device_of_call = current_device;
  return 0;
}

}  // namespace

extern "C" {

int fake_device_of_call() {
  return device_of_call.exchange(-1);
}
void fake_set_query_result(int result) {
  query_result = result;
}
void fake_set_capture_status(int status) {
  capture_status = status;
}

int cuInit(unsigned) {
  return FAKE_INIT_RESULT;
}
#ifndef FAKE_LACKS_COUNT
int cuDeviceGetCount(int* count) {
  *count = FAKE_NUM_DEVICES;
  return 0;
}
#endif

int cudaGetDeviceCount(int* count) {
  *count = FAKE_NUM_DEVICES;
  return 0;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? FAKE_CAPABILITY / 10 : FAKE_CAPABILITY % 10;
  return 0;
}
int cudaGetDevice(int* index) {
  *index = current_device;
  return 0;
}
int cudaSetDevice(int index) {
  current_device = index;
  return 0;
}
int cudaMalloc(void** data, std::size_t size) {
  *data = std::malloc(size);
  return called();
}
int cudaFree(void* data) {
  std::free(data);
  return called();
}
int cudaHostAlloc(void** data, std::size_t size, unsigned) {
  *data = std::malloc(size);
  return called();
}
int cudaFreeHost(void* data) {
  std::free(data);
  return called();
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t size, int, void*) {
  std::memcpy(to, from, size);
  return called();
}
int cudaMemsetAsync(void* data, int byte, std::size_t size, void*) {
  std::memset(data, byte, size);
  return called();
}
int cudaStreamCreateWithFlags(void** stream, unsigned) {
  *stream = &device_of_call;
  return called();
}
int cudaStreamDestroy(void*) {
  return called();
}
int cudaStreamSynchronize(void*) {
  return called();
}
#ifndef FAKE_LACKS_QUERY
int cudaStreamQuery(void*) {
  called();
  return query_result;
}
#endif
int cudaStreamIsCapturing(void*, int* status) {
  *status = capture_status;
  return called();
}
int cudaGetLastError() {
  return 0;
}
const char* cudaGetErrorString(int result) {
  return result == 700 ? "illegal address" : "?";
}

}  // extern "C"
