// What libcuda.so.1 of the tests tells beyond the driver's functions.
//
// It executes PTX on the CPU, with the driver's refusals, on two devices. The environment chooses
// what they are:
//   TORCHAMP_PTX_CAPABILITY     10 · major + minor; default 90
//   TORCHAMP_PTX_DRIVER         the driver's version; default 13090
//   TORCHAMP_PTX_OUT_OF_MEMORY  the number of the module load that fails, from 1; default: none
//   TORCHAMP_PTX_SEED           interleaves blocks and delays their stores, at random
//   TORCHAMP_PTX                a file of PTX that stands in for images that only a card can
//   execute
#pragma once

#include <cstdint>

extern "C" {

/// Bytes of global memory that all launches so far loaded and stored.
void ptxTraffic(std::uint64_t* loaded, std::uint64_t* stored);

/// Calls visit for each loaded kernel: how many of its instructions were executed, of how many.
void ptxCoverage(void (*visit)(const char* kernel, int executed, int instructions));

/// The message of the last fault of a kernel; empty if there was none.
const char* ptxFault();

/// Launches so far, on all devices.
std::uint64_t ptxLaunches();

/// As a device: the host, whose pinned memory every device may access.
constexpr int ptxHost = -1;

/// Bytes that the device's kernels may access, which are NaNs at first. Once there are any, kernels
/// may access no others.
void* ptxAllocate(int device, std::uint64_t bytes);

/// Frees them when the stream is there; at once what is the host's.
void ptxFree(int device, void* stream, void* address);

/// From now on kernels run as late as their stream may: when the host, or another stream, waits.
void ptxQueueLaunches();

/// The end of what a stream has to do: what an event records.
std::uint64_t ptxRecord(int device, void* stream);

/// What is later in the stream waits for that position of another.
void ptxWait(int device, void* stream, int other_device, void* other, std::uint64_t position);

/// 600 if the stream is not there yet; it then gets one launch further.
int ptxQuery(int device, void* stream, std::uint64_t position);

/// Returns when the stream is there. The error of a kernel, if there was one; 900 in a capture.
int ptxSynchronize(int device, void* stream, std::uint64_t position);

/// Begins to capture a stream: its launches are kept, not executed.
int ptxBeginCapture(void* stream);

/// Ends the capture. 901 if it was invalidated.
int ptxEndCapture(void* stream);

/// Launches there what the last capture kept.
int ptxReplay(int device, void* stream);
}
